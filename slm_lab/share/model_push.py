"""Pushing an agent as a model repo: the exported file, a replay, the curve, the spec and a card; needs torch."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from slm_lab.deploy.export import export_agent
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import enjoy
from slm_lab.lib.errors import LabError, ShareError
from slm_lab.lib.runtime import import_modules
from slm_lab.results.run import Run, read_run
from slm_lab.share.card import find_curve, find_spec, find_video
from slm_lab.share.manifest import Manifest, summarize
from slm_lab.share.model import AGENT, CURVE, MODEL, SPEC, VIDEO, ModelManifest, read_model
from slm_lab.share.model_card import write_model_card
from slm_lab.share.push import describe_run, send
from slm_lab.share.run_files import CARD, read_file, refuse_secrets
from slm_lab.share.store import Store


def push_model(path: Path, store: Store, imports: Sequence[str] = (), with_checkpoints: bool = False) -> str:
    """Make or update the model repo of a run, and return its address; a repo holds the agent of one run."""
    import_modules(imports)
    with tempfile.TemporaryDirectory() as made:
        folder, top = Path(made) / "run", Path(made) / "top"
        folder.mkdir()
        top.mkdir()
        manifest, find, _ = describe_run(path, with_checkpoints, folder)
        run = read_run(path)
        paths = _write_top(run, manifest, store.name, top, imports)
        model = ModelManifest(
            manifest.name, manifest.identity, manifest.summary.frame, tuple(read_file(top, name) for name in paths)
        )
        store.check_write()
        there = read_model(store)
        _refuse_other(model, there, store)
        if there == model:
            logger.info(f"{store.root_url} has this agent already, nothing to upload")
            return store.root_url
        send(manifest, find, store)
        store.upload({name: top / name for name in paths}, f"Add the agent of {manifest.name}")
        # last: a repo with it is complete
        (top / MODEL).write_bytes(model.to_bytes())
        store.upload({MODEL: top / MODEL}, f"Describe the agent of {manifest.name}")
    return store.root_url


def _refuse_other(model: ModelManifest, there: ModelManifest | None, store: Store) -> None:
    if there is None:
        return
    if there.identity != model.identity:
        raise ShareError(
            f"{store.root_url} holds the agent of another run ({there.run}), which is not replaced; name another repo"
        )
    if there.frame > model.frame:
        raise ShareError(
            f"{store.root_url} has gone further ({there.frame:,} frames) than the copy here ({model.frame:,}), which "
            "is not sent over it"
        )


def _write_top(run: Run, manifest: Manifest, repo: str, top: Path, imports: Sequence[str]) -> list[str]:
    """Write what is at the top of the repo, and return its names, the card first."""
    exported = export_agent(run.path, top / AGENT, session=None)
    held = [file.path for file in manifest.files]
    spec = find_spec(run, held)
    if spec is None:
        raise ShareError(f"{run.path} has no spec file of its trial; was it renamed?")
    shutil.copyfile(run.path / spec, top / SPEC)
    names = [AGENT, SPEC]
    if (curve := find_curve(run, held)) is not None:
        shutil.copyfile(run.path / curve, top / CURVE)
        names.append(CURVE)
    if _write_video(run, held, top / VIDEO, imports):
        names.append(VIDEO)
    card = write_model_card(run, summarize(run), repo, names, exported.contract, exported.sha256, imports)
    (top / CARD).write_text(card, encoding="utf-8")
    names.insert(0, CARD)
    for name in names:
        refuse_secrets(top, name)
    return names


def _write_video(run: Run, held: Sequence[str], target: Path, imports: Sequence[str]) -> bool:
    """The latest video of the run, or else an episode of its best agent; without an env that renders there is none."""
    if (video := find_video(held, ".mp4")) is not None:
        shutil.copyfile(run.path / video, target)
        return True
    try:
        enjoy(str(run.path), Options(imports=tuple(imports), video=target), 1, lambda index, value: None)
    except LabError as error:
        logger.warning(f"The model gets no replay: {error}")
        return False
    return True
