"""Packaging of mxloop; everything that tools read is in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def version():
    """Read the version without importing mxloop, which would need MXNet."""
    names = {}
    exec((HERE / "mxloop" / "version.py").read_text(), names)
    return names["__version__"]


def long_description():
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


# CUDA 11 and cuDNN 8 as wheels, the last of their kind: MXNet 1.9.1 was built against these.
CUDA_11 = [
    "nvidia-cublas-cu11==11.11.3.6",
    "nvidia-cuda-nvrtc-cu11==11.8.89",
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cudnn-cu11==8.9.6.50",
    "nvidia-cufft-cu11==10.9.0.58",
    "nvidia-curand-cu11==10.3.0.86",
    "nvidia-cusolver-cu11==11.4.1.48",
    "nvidia-cusparse-cu11==11.7.5.86",
    "nvidia-nccl-cu11==2.21.5",
    "nvidia-nvtx-cu11==11.8.86",
]

EXTRAS = {
    "cpu": ["mxnet==1.9.1"],
    "cu112": ["mxnet-cu112==1.9.1", *CUDA_11],
    "cu117": ["mxnet-cu117==1.9.1", *CUDA_11],
    "mpi": ["mpi4py", "mpich"],
    "progress": ["tqdm"],
    "tensorboard": ["tensorboardX"],
    "plot": ["matplotlib"],
    "sklearn": ["scikit-learn"],
    "yaml": ["PyYAML"],
    "docs": ["myst-parser", "sphinx"],
    "onnx": ["onnx<1.19", "onnxruntime"],
    "test": [
        "PyYAML",
        "foolbox>=3.3.4",  # for its images
        "hypothesis",
        "matplotlib",
        "myst-parser",
        "onnx<1.19",
        "onnxruntime",
        "pandas",
        "pillow",
        "pytest>=7",
        "ruff==0.17.6",
        "scikit-learn",
        "scipy",
        "setuptools>=70.1",
        "sphinx",
        "tensorboardX",
        "tqdm",
    ],
}

setup(
    name="mxloop",
    version=version(),
    description="Training loops for Apache MXNet 1.9: the pieces, and a FeedForward made of them",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["mxloop", "mxloop.*"]),
    package_data={
        "mxloop": ["data/*"]
    },  # a plain folder: as a package it would hide mxloop/data.py
    python_requires=">=3.8,<3.14",
    install_requires=["numpy>=1.17"],
    entry_points={"console_scripts": ["mxloop = mxloop.cli:main"]},
    extras_require=EXTRAS,
    zip_safe=False,
    keywords=["mxnet", "deep learning", "training", "data parallel", "distributed"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(8, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
