//! The command line.

// The macro's items are always `pub`.
#![allow(unreachable_pub)]

use std::ffi::OsString;
use std::path::PathBuf;

xflags::xflags! {
    /// The project's tasks.
    cmd xtask {
        /// Compiles the kernels to PTX, into host/ptx.
        cmd build-ptx {
            /// The compiler: 1.96.0 or newer, with its own source of `core`. Searched for by default.
            optional --rustc path: PathBuf
            /// The assembler that reports registers, and refuses unknown spills. By default the one
            /// in PATH, if there is one, whose spills are only printed.
            optional --ptxas path: PathBuf
            /// Writes nothing; fails if host/ptx is not what the kernels compile to.
            optional --check
            /// With --check: fails if the PTX cannot be compiled again, and only hashes are
            /// compared.
            optional --require-bytes
        }
        /// Everything that must pass before a commit: formatting, clippy, docs, PTX, tests.
        cmd test {
            /// Fails if the tests would run on the emulator.
            optional --require-gpu
            /// Runs the slow tests too.
            optional --full
            /// Installs no compiler for the PTX check, and no cargo-deny.
            optional --no-install
            /// Fails if the PTX cannot be compiled again, and only hashes are compared.
            optional --require-bytes
            /// Fails if there is no cargo-deny, and dependencies are not checked.
            optional --require-deny
        }
        /// Makes the packages to publish, and builds and runs a crate with them outside the
        /// repository, with an empty environment, with and without the feature `emulator`. Compiles
        /// the packages for candle and burn with them.
        cmd package {}
        /// Measures each loss on a GPU, a kernel that only reads and writes the same bytes, and
        /// other libraries if `python3` has PyTorch.
        cmd bench {
            /// Parts of the names of the measurements to run; all by default.
            repeated names: OsString
            /// Leaves out the other libraries.
            optional --no-peers
            /// Writes the results to this file, as JSON.
            optional --json path: PathBuf
            /// Draws the results to this file, as SVG: the part of the ceiling that each library reaches.
            optional --picture path: PathBuf
            /// Measures nothing, and shows the results in this JSON file.
            optional --from path: PathBuf
            /// Measures the shapes that the tables of this Markdown file name, in place of any that
            /// are drawn, and writes the figures into the tables; with --from, those of that file.
            optional --document path: PathBuf
            /// Measures first calls instead of the fixed list, each in a new process without the
            /// driver's cache: from Gpu::new to the result, and the call alone.
            optional --first-call
            /// Measures random shapes instead of the fixed list, each with the ceiling for its
            /// bytes, and some of them with the other libraries.
            optional --landscape
            /// Of the landscape: the seed of the shapes. By default a new one, which is printed.
            optional --seed number: u64
            /// Of the landscape: how many shapes; 150 by default.
            optional --shapes number: usize
            /// Of the landscape: only one loss, ce, kl or mse.
            optional --only loss: String
            /// Of the landscape: the most MiB of logits; 2048 by default.
            optional --max-mib number: usize
            /// Of the landscape: only the shapes named by this option, instead of random ones: e.g.
            /// "ce f32 forward 65536x1000 weights,smoothing", as the results name them.
            repeated --shape text: String
            /// Of the landscape: how many shapes the other libraries measure; 60 by default.
            optional --peers-shapes number: usize
        }
        /// Runs the tests on a GPU under each tool of NVIDIA's compute-sanitizer, of PATH or of the CUDA toolkit.
        cmd sanitize {
            /// Only this suite: a file of tests/tests, or fused_loss for the library's own tests.
            repeated --test name: String
            /// Only this tool: memcheck, racecheck, synccheck or initcheck.
            repeated --tool name: String
            /// Builds nothing, and uses the test binaries in this folder, named as cargo names
            /// them.
            optional --binaries path: PathBuf
        }
        /// Makes random calls of the losses, on the GPU or the emulator, and compares each with
        /// float64 or with the documented errors. Prints a test for each finding.
        cmd fuzz {
            /// How many minutes to run; 10 by default.
            optional --minutes number: f64
            /// The first seed, as a run or a finding prints it. By default a new one.
            optional --seed number: u64
        }
        /// Plants bugs in the kernels, and checks that a test on the emulator finds each.
        cmd mutants {
            /// Only mutants with this in their name or file name.
            repeated --only part: String
        }
        /// Runs tests on the emulator with the threads, warps and blocks of each launch in a random
        /// order, on a device with many multiprocessors and on one with few.
        cmd orders {
            /// The seed that a run has printed. By default a new one.
            optional --seed number: u64
            /// How often; once by default. Each time uses a new seed unless one is given.
            optional --times number: u32
        }
        /// Trains a softmax classifier: the example `03_softmax_classifier`, on the GPU or the emulator.
        cmd demo {
            /// Arguments of the example; those that begin with a dash must follow a `--`.
            repeated args: OsString
        }
    }
}
