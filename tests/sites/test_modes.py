"""Files with IDs and labels are for their owner only."""

import os
import stat
from pathlib import Path

from .memory import Federation, run_virtually
from .tables import write_tables


def test_ids_and_labels_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        federation = Federation(write_tables(tmp_path), tmp_path / "hubs")

        async def begin() -> None:
            await federation.start()
            await federation.stop()

        run_virtually(begin())
    finally:
        os.umask(before)
    private = [*(tmp_path / "hubs").rglob("alignment.parquet"), *(tmp_path / "hubs").rglob("silo.safetensors")]
    assert len(private) == 6
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
