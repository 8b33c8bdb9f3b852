"""`python -m slm_lab.cli`: the same as `slm-lab`."""

from slm_lab.cli.main import main

main()
