from types import SimpleNamespace

import pytest

from tether.machine import devices, threads

from .places import GIB, loading, named, place, torch_of

H200 = SimpleNamespace(name="H200", major=9, minor=0, memory=(100 * GIB, 139 * GIB))
T4 = SimpleNamespace(name="T4", major=7, minor=5, memory=(14 * GIB, 15 * GIB))


def test_a_machine_without_proc_or_cgroups_is_described_all_the_same(tmp_path):
    found = list(devices.look(place(tmp_path)))
    assert [finding.name for finding in found] == ["processor", "cores", "memory", "gpu"]
    assert {finding.status for finding in found} == {"ok"}


def test_a_processor_is_named_with_what_multiplies_bfloat16(tmp_path):
    cpuinfo = "model name\t: AMD EPYC\nflags\t\t: fpu avx512_bf16 amx_bf16\n\n"
    finding = named(devices.look(place(tmp_path, {"proc/cpuinfo": cpuinfo})), "processor")
    assert finding.value == "AMD EPYC, bfloat16 by AVX512 and AMX"


def test_cores_are_told_with_whoever_limits_them(tmp_path):
    here = place(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000"}, num_cores=lambda: 64, usable_cores=lambda: 8)
    finding = named(devices.look(here), "cores")
    assert finding.value == "1.5 usable of 64 (affinity 8, cgroup quota 1.5)"


def test_little_memory_is_worth_a_look(tmp_path):
    files = {"proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n"}
    finding = named(devices.look(place(tmp_path, files)), "memory")
    assert (finding.status, finding.value) == ("warn", "1.0 GiB available of 4.0 GiB")


def test_each_gpu_is_told_with_its_memory_and_whether_bfloat16_is_native(tmp_path):
    broken = RuntimeError("CUDA error: all devices are busy")
    here = place(tmp_path, load=loading({"torch": torch_of(cuda="12.8", gpus=(H200, T4, broken))}))
    found = list(devices.look(here))
    first, second, third = (named(found, f"cuda:{index}") for index in range(3))
    assert (first.status, first.value) == ("ok", "H200, 100.0 GiB free of 139.0 GiB, bfloat16 native")
    assert (second.status, second.way_out) == ("warn", "bfloat16 is slow here: --set engine.dtype=float32")
    assert (third.status, third.value) == ("fail", "RuntimeError: CUDA error: all devices are busy")


def test_a_torch_for_cuda_without_a_driver_works_and_says_what_is_missing(tmp_path):
    torch = torch_of(cuda="12.8")

    def is_available():
        import warnings

        warnings.warn("CUDA initialization: found no NVIDIA driver", stacklevel=1)
        return False

    torch.cuda.is_available = is_available
    finding = named(devices.look(place(tmp_path, load=loading({"torch": torch}))), "gpu")
    assert finding.status == "warn"
    assert "finds no GPU and driver: CUDA initialization: found no NVIDIA driver" in finding.value
    assert "install its driver" in finding.way_out


@pytest.mark.parametrize(
    ("torch", "files", "variables", "said"),
    [
        (torch_of(), {"dev/nvidia0": ""}, {}, "a GPU is here, but this torch is built for CPUs"),
        (torch_of(cuda="12.8"), {}, {"CUDA_VISIBLE_DEVICES": ""}, "hidden by CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_is_not_used_is_told_with_the_reason(tmp_path, torch, files, variables, said):
    finding = named(devices.look(place(tmp_path, files, load=loading({"torch": torch}), variables=variables)), "gpu")
    assert finding.status == "warn"
    assert said in finding.value


def test_more_threads_than_usable_cores_are_told_with_the_number_to_set(tmp_path):
    here = place(
        tmp_path,
        {"sys/fs/cgroup/cpu.max": "150000 100000"},
        num_cores=lambda: 64,
        usable_cores=lambda: 64,
        load=loading({"torch": torch_of(threads=32)}),
    )
    finding = named(threads.look(here), "number")
    assert finding.status == "warn"
    assert finding.value == "torch uses 32 (OMP_NUM_THREADS is not set), but 1.5 cores are usable"
    assert finding.way_out == "export OMP_NUM_THREADS=2"


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"OMP_WAIT_POLICY": "passive"}, "ok"),
        ({}, "warn"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "warn"),
        ({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "infinite"}, "warn"),
    ],
)
def test_threads_that_spin_while_they_wait_are_worth_a_look(tmp_path, variables, status):
    finding = named(threads.look(place(tmp_path, variables=variables)), "waiting")
    assert finding.status == status
    assert status == "ok" or "export OMP_WAIT_POLICY=PASSIVE" in finding.way_out


def test_a_busy_machine_is_told_before_its_speed_is_measured(tmp_path):
    assert named(threads.look(place(tmp_path, load_average=lambda: 3.1)), "load").status == "warn"
    assert named(threads.look(place(tmp_path, load_average=lambda: 2.9)), "load").status == "ok"


def test_without_torch_there_is_nothing_to_say_about_its_threads_or_gpus(tmp_path):
    here = place(tmp_path, load=loading({}), load_average=lambda: None)
    assert [finding.name for finding in threads.look(here)] == ["waiting"]
    assert "gpu" not in [finding.name for finding in devices.look(here)]
