"""``python -m tdcd`` is ``tdcd``."""

from tdcd.cli.main import main

main()
