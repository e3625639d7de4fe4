"""Ranks that other launchers have started, by the variables that these set on one host."""

import os
import re
import subprocess
import sys

import pytest

# Each rank gives 100 times its job's number and its rank: a rank that met another job's would see it.
BODY = """
import sys
import foldcast
given = 100 * int(sys.argv[1]) + foldcast.rank()
print(foldcast.rank(), foldcast.size(), foldcast.allreduce([given])[0])
"""
WATCHDOG = 120
OTHERS = re.compile(
    r"(OMPI|PMI|PMIX|MPI|SLURM|FOLDCAST|HCCL|CM|MASTER|LOCAL|TORCHELASTIC|I_MPI)_|RANK|WORLD_SIZE|DEVICE_ID"
)


def open_mpi(job, rank, size):
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": size,
        "PMIX_RANK": rank,
        "PMIX_NAMESPACE": f"prterun-host-{job}@1",
    }


def intel_mpi(job, rank, size):
    local = {"MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": size}
    return {"PMI_RANK": rank, "PMI_SIZE": size, "I_MPI_HYDRA_UUID": f"e32a0000-{job}", **local}


def slurm(job, rank, size, hosts=1):
    return {
        "SLURM_JOB_ID": 4711,
        "SLURM_STEP_ID": job,
        "SLURM_NTASKS": size,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_STEP_NUM_NODES": hosts,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
    }


def slurm_with_pmix(job, rank, size):
    return {**slurm(job, rank, size), "PMIX_RANK": rank, "PMIX_NAMESPACE": f"slurm.pmix.4711.{job}"}


def slurm_with_pmi2(job, rank, size):
    return {**slurm(job, rank, size), "PMI_RANK": rank, "PMI_SIZE": size, "PMI_JOBID": f"4711.{job}"}


def start(variables, job, within=()):
    kept = {name: value for name, value in os.environ.items() if not OTHERS.match(name)}
    env = {**kept, **{name: str(value) for name, value in variables.items()}}
    command = [*within, sys.executable, "-c", BODY, str(job)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outputs(processes):
    """What they printed; all must have ended well."""
    try:
        said = [process.communicate(timeout=WATCHDOG) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), said
    return [out for out, _ in said]


def expected(job, size):
    total = size * 100 * job + sum(range(size))
    return sorted(f"{rank} {size} {total}" for rank in range(size))


@pytest.mark.parametrize("launcher", [open_mpi, intel_mpi, slurm, slurm_with_pmix, slurm_with_pmi2])
def test_ranks_of_other_launchers_meet_and_jobs_do_not(launcher):
    size, jobs = 3, (1, 2)
    processes = {job: [] for job in jobs}
    for rank in range(size):
        for job in jobs:
            processes[job].append(start(launcher(job, rank, size), job))
    said = outputs([process for job in jobs for process in processes[job]])
    for number, job in enumerate(jobs):
        assert sorted(out.strip() for out in said[number * size : (number + 1) * size]) == expected(job, size)


def test_jobs_of_mpich_differ_by_who_has_started_them(tmp_path):
    """MPICH names no job: one process starts all ranks of a host, perhaps through a shell."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.write_text(
        "#!/bin/bash\n"
        "export PMI_SIZE=2 MPI_LOCALNRANKS=2\n"
        'for rank in 0 1; do PMI_RANK=$rank bash -c \'"$@"; exit $?\' shell "$@" & done\n'
        "wait -n && wait -n\n"
    )
    proxy.chmod(0o755)
    jobs = (1, 2)
    said = outputs([start({}, job, within=[str(proxy)]) for job in jobs])
    for out, job in zip(said, jobs):
        assert sorted(out.splitlines()) == expected(job, 2)


def test_what_spans_hosts_is_refused():
    spread = [slurm(1, 0, 4, hosts=2), {"PMI_RANK": 0, "PMI_SIZE": 4, "MPI_LOCALNRANKS": 2}]
    spread.append({**open_mpi(1, 0, 4), "OMPI_COMM_WORLD_LOCAL_SIZE": 2})
    # One process of a script that could start four.
    script = {"SLURM_JOB_ID": 4711, "SLURM_NTASKS": 4, "SLURM_PROCID": 0}
    for variables, words in [*((variables, "span hosts") for variables in spread), (script, "srun")]:
        process = start(variables, 1)
        out, err = process.communicate(timeout=WATCHDOG)
        assert process.returncode != 0 and out == "" and "InvalidArgumentError" in err and words in err, (out, err)
