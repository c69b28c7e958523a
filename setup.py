from setuptools import setup

setup(cffi_modules=["csrc/ffi_build.py:ffi"], options={"bdist_wheel": {"py_limited_api": "cp310"}})
