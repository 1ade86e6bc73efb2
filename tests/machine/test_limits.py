import pytest

from tether.machine.limits import cores, memory

from .places import GIB, place

MEMINFO = f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {8 * 2**20} kB\n"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/cpu.max": "300000 100000"}, 3.0),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000",
                "sys/fs/cgroup/pod/box/cpu.max": "400000 100000",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/box\n3:memory:/box\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}, None),
        ({"proc/self/cgroup": "nonsense", "sys/fs/cgroup/cpu.max": "what is this"}, None),
    ],
    ids=["no cgroup", "no limit", "v2", "v2 around it", "the least of two", "v1", "v1 without limit", "garbage"],
)
def test_the_quota_of_a_cgroup_is_found_wherever_it_is_set(tmp_path, files, quota):
    assert cores(place(tmp_path, files)).quota == quota


def test_usable_cores_are_the_least_of_what_is_granted(tmp_path):
    here = place(tmp_path, {"sys/fs/cgroup/cpu.max": "600000 100000"}, num_cores=lambda: 64, usable_cores=lambda: 8)
    assert (cores(here).usable, cores(here).num_threads) == (6.0, 6)
    assert cores(place(tmp_path / "odd", num_cores=lambda: None, usable_cores=lambda: None)).num_threads == 1


def test_available_memory_is_what_the_cgroup_leaves(tmp_path):
    here = place(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "sys/fs/cgroup/memory.max": str(4 * GIB),
            "sys/fs/cgroup/memory.current": str(3 * GIB),
            "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
        },
    )
    assert memory(here) == (16 * GIB, 3 * GIB, 4 * GIB)


def test_a_limit_of_the_first_kind_of_cgroups_that_is_none_is_none(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "3:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert memory(place(tmp_path, files)) == (16 * GIB, 8 * GIB, None)


def test_without_proc_the_available_memory_is_unknown(tmp_path):
    assert memory(place(tmp_path)).available is None
