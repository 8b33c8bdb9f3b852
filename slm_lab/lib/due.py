"""When periodic work is due."""


class Due:
    """Says when periodic work is due: whenever a multiple is passed, for steps of any size."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.next = every

    def __call__(self, frame: int) -> bool:
        if frame < self.next:
            return False
        self.next += self.every * ((frame - self.next) // self.every + 1)
        return True

    def skip_to(self, frame: int) -> None:
        """Forget what was due up to a frame."""
        self.next = self.every * (frame // self.every + 1)
