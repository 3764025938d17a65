//! The command line.

// The macro's items are `pub`, whatever module it stands in.
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
            /// The assembler that reports registers, and refuses spills that are not known. By
            /// default that of PATH, if there is one, which only prints them.
            optional --ptxas path: PathBuf
            /// Writes nothing; fails if host/ptx is not what the kernels compile to.
            optional --check
            /// Of the check: fails where the PTX cannot be compiled again, and only hashes are compared.
            optional --require-bytes
        }
        /// Everything that must pass before a commit: formatting, clippy, docs, PTX, tests.
        cmd test {
            /// Fails where the tests would run on the emulator.
            optional --require-gpu
            /// Runs the slow tests too.
            optional --full
            /// Installs no compiler for the PTX check, and no cargo-deny.
            optional --no-install
            /// Fails where the PTX cannot be compiled again, and hashes alone are compared.
            optional --require-bytes
            /// Fails where there is no cargo-deny, and dependencies are not checked.
            optional --require-deny
        }
        /// Makes the packages that would be published, and builds and runs a stranger's crate with
        /// them outside the repository: with nothing in its environment, with and without the
        /// feature `emulator`. Compiles the packages for candle and burn with them.
        cmd package {}
        /// Measures each loss on a GPU, beside a kernel that only reads and writes the same bytes, and beside other
        /// libraries where `python3` has PyTorch.
        cmd bench {
            /// Parts of the names of what is measured; everything by default.
            repeated names: OsString
            /// Leaves out the other libraries.
            optional --no-peers
            /// Writes the results to this file, as JSON.
            optional --json path: PathBuf
            /// Draws the results to this file, as SVG: the part of the ceiling that each library reaches.
            optional --picture path: PathBuf
            /// Measures nothing, and shows the results of this JSON file.
            optional --from path: PathBuf
            /// Measures first calls in place of the fixed list, each in a process of its own that uses
            /// nothing of the driver's cache: from Gpu::new to the result, and the call alone.
            optional --first-call
            /// Measures shapes that are drawn at random in place of the fixed list, each beside the
            /// ceiling of its bytes, and some of them with the other libraries.
            optional --landscape
            /// Of the landscape: what the shapes are drawn from. By default a new one, which is printed.
            optional --seed number: u64
            /// Of the landscape: how many shapes; 150 by default.
            optional --shapes number: usize
            /// Of the landscape: one loss alone, ce, kl or mse.
            optional --only loss: String
            /// Of the landscape: the most MiB of logits; 2048 by default.
            optional --max-mib number: usize
            /// Of the landscape: this shape, and others that are named so, in place of any that are drawn: e.g.
            /// "ce f32 forward 65536x1000 weights,smoothing", as the results name them.
            repeated --shape text: String
            /// Of the landscape: how many shapes the other libraries measure; 60 by default.
            optional --peers-shapes number: usize
        }
        /// Runs the tests on a GPU under each tool of NVIDIA's compute-sanitizer, of PATH or of the CUDA toolkit.
        cmd sanitize {
            /// This suite alone: a file of tests/tests, or fused_loss for the library's own tests.
            repeated --test name: String
            /// This tool alone: memcheck, racecheck, synccheck or initcheck.
            repeated --tool name: String
            /// Builds nothing, and takes the test binaries of this folder, named as cargo names them.
            optional --binaries path: PathBuf
        }
        /// Draws calls of the losses at random, on the GPU or the emulator, and holds each against float64 and
        /// against the documented errors. Prints a test of each finding.
        cmd fuzz {
            /// How long to go on; 10 by default.
            optional --minutes number: f64
            /// Where to begin: the seed that a run or a finding has printed. By default a new one.
            optional --seed number: u64
        }
        /// Plants bugs in the kernels, and sees that a test on the emulator finds each.
        cmd mutants {
            /// Only mutants with this in their name or their file's.
            repeated --only part: String
        }
        /// Runs tests on the emulator with the threads, warps and blocks of each launch in an order that is drawn
        /// from a seed, on a device of many multiprocessors and on one of few.
        cmd orders {
            /// The seed that a run has printed. By default a new one.
            optional --seed number: u64
            /// How often; once by default, and each time from a new seed unless one is given.
            optional --times number: u32
        }
        /// Trains a softmax classifier: the example `03_softmax_classifier`, on the GPU or the emulator.
        cmd demo {
            /// Arguments of the example; after a `--` those that begin with a dash.
            repeated args: OsString
        }
    }
}
