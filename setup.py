import sysconfig

from setuptools import setup

if sysconfig.get_config_var("Py_GIL_DISABLED"):  # no wheel fits it, so pip would build one
    raise SystemExit("marlcore: expected a Python with its global interpreter lock, got a free-threaded one")
setup(cffi_modules=["csrc/ffi_build.py:ffi"], options={"bdist_wheel": {"py_limited_api": "cp310"}})
