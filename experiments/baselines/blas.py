"""Threads and BLAS of a PyTorch process. It does not import torch, because OpenMP and BLAS read the environment only when torch loads
them."""

import ctypes
import pathlib
import re
import subprocess
import tempfile

ASKED_BY_MKL = "mkl_serv_intel_cpu_true"


def environment(threads, tell_cpu=True):
    """Environment variables for a process that will load torch. Without `tell_cpu`, OpenBLAS detects the CPU by itself."""
    variables = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    # OpenBLAS may not know a newer CPU, or the environment may hide it: AVX2 kernels run at half the speed of AVX-512 ones.
    flags = re.search(r"^flags.*$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if tell_cpu and flags and {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(flags.group().split()):
        variables["OPENBLAS_CORETYPE"] = "SkylakeX"
    return variables


def tell_mkl():
    """Makes MKL use its fast kernels on a CPU of AMD. By itself MKL takes slower kernels if the CPU is not Intel's: on a Zen 4, two
    thirds of the speed of products and a fifth of that of exp(). MKL asks a function for the CPU; this loads another function in its
    place. Must be called before torch is loaded. Needs a C compiler; without one it does nothing."""
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
    """The library that computes the matrix products of the loaded torch: "MKL", "OpenBLAS SkylakeX", or the file name of another
    library."""
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
