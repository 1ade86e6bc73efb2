import subprocess
import sys
from pathlib import Path

import pytest

from tether.placement.keeper import Keeper

HOLD = "import sys, time; f = open(sys.argv[1] + '/log', 'w'); print('open', flush=True); time.sleep(60)"


def holder(folder: Path, name: str) -> subprocess.Popen[str]:
    """A process that has a file open in a folder, and a word on its command line."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_whatever_of_rays_works_in_the_folder_ends_with_it_and_nobody_else_does(tmp_path):
    folder = tmp_path / "session"
    folder.mkdir()
    keeper = Keeper(str(folder))
    theirs, somebody = holder(folder, "ray::Agent"), holder(folder, "an-editor")
    try:
        keeper.close()
        assert theirs.wait(10) == -9
        assert somebody.poll() is None
        assert not folder.exists()
    finally:
        for process in (theirs, somebody):
            process.kill()
            process.communicate()
