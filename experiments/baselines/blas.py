"""Threads and BLAS of a PyTorch process. Does not import torch, whose OpenMP and BLAS read the environment only when they are loaded."""

import ctypes
import pathlib
import re
import subprocess
import tempfile

ASKED_BY_MKL = "mkl_serv_intel_cpu_true"


def environment(threads, tell_cpu=True):
    """Variables for a process that will load torch. Without `tell_cpu` OpenBLAS detects the CPU by itself."""
    variables = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    # OpenBLAS may not know a newer CPU, or the environment may hide it: AVX2 kernels run at half the speed of AVX-512 ones.
    flags = re.search(r"^flags.*$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if tell_cpu and flags and {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(flags.group().split()):
        variables["OPENBLAS_CORETYPE"] = "SkylakeX"
    return variables


def tell_mkl():
    """MKL takes slower kernels on a CPU that is not Intel's, although it can do the same: on a Zen 4 two thirds of the speed of products, a
    fifth of exp(). It asks a function, of which this loads another one. Needs a C compiler; without one nothing happens. Before torch is loaded."""
    if "AuthenticAMD" not in pathlib.Path("/proc/cpuinfo").read_text():
        return
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "told.so"
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-o", library, "-"], input=f"int {ASKED_BY_MKL}(void) {{ return 1; }}", text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def in_use(torch):
    """What the matrix products of the loaded torch run on: "MKL", "OpenBLAS SkylakeX", or the file name of another library."""
    if torch.backends.mkl.is_available():
        return "MKL, told of the CPU" if hasattr(ctypes.CDLL(None), ASKED_BY_MKL) else "MKL"
    maps = pathlib.Path("/proc/self/maps").read_text()
    paths = set(re.findall(r"/\S*/lib(?:open)?(?:blas|blis)[^/\s]*", maps))
    paths = sorted(paths, key=lambda path: "/libopenblas" not in path)
    if not paths:
        return "unknown"
    if "/libopenblas" not in paths[0]:
        return pathlib.Path(paths[0]).name
    core = ctypes.CDLL(paths[0]).openblas_get_corename
    core.restype = ctypes.c_char_p
    return f"OpenBLAS {core().decode()}"
