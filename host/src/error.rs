//! All errors, in one enum. An error in the caller's arguments names the argument, what was
//! expected and what came, and is found before anything is queued.

use cust::error::CudaError;

/// The result of this library's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable NVIDIA driver on this machine.
    #[error("no NVIDIA driver: {reason}")]
    NoDriver {
        /// What the library tried, and how it failed.
        reason: String,
    },

    /// The emulator cannot run in this process.
    #[error("no emulator: {reason}")]
    NoEmulator {
        /// What the emulator lacks.
        reason: String,
    },

    /// A process uses either the real driver or the emulated one, not both.
    #[error("this process already runs on the {chosen}; the {asked} cannot be had beside it")]
    OtherDriver {
        /// The driver that an earlier call chose.
        chosen: &'static str,
        /// The driver that this call asked for.
        asked: &'static str,
    },

    /// The machine has no device with this number.
    #[error("ordinal: expected a device below {count}, got {ordinal}")]
    NoDevice {
        /// The device asked for.
        ordinal: u32,
        /// The number of devices in the machine.
        count: u32,
    },

    /// The device is older than the oldest that the kernels are compiled for.
    #[error("{device}: expected compute capability {expected} or later, got {got}")]
    UnsupportedDevice {
        /// The device's name.
        device: String,
        /// The oldest compute capability that works.
        expected: String,
        /// The device's compute capability.
        got: String,
    },

    /// The device has only one multiprocessor. It may lack room for both the block that adds up
    /// what others publish and one of those others.
    #[error("{device}: expected 2 multiprocessors at least, got {got}")]
    SmallDevice {
        /// The device's name.
        device: String,
        /// The number of its multiprocessors.
        got: usize,
    },

    /// The driver cannot compile a kernel.
    #[error("kernel {name}: the driver (CUDA {driver}) refuses its PTX ({ptx}); {advice}\n{log}")]
    UnsupportedPtx {
        /// The kernel.
        name: &'static str,
        /// The CUDA version that the driver supports.
        driver: String,
        /// Version and target of the PTX.
        ptx: String,
        /// What to do about it.
        advice: &'static str,
        /// What the driver's compiler said.
        log: String,
    },

    /// The library's PTX takes other arguments than the library passes to it.
    #[error(
        "kernels: expected PTX of the argument layouts {kernels:016x}, which fused-loss-kernels \
         has, got PTX of the layouts {ptx:016x}; fused-loss and fused-loss-kernels must be of one \
         version, or the PTX compiled again (cargo xtask build-ptx)"
    )]
    OtherLayouts {
        /// The hash of the layouts that the PTX was compiled for.
        ptx: u64,
        /// The hash of those that this build passes.
        kernels: u64,
    },

    /// The library has no such kernel.
    #[error("no kernel {name}; the library holds {module} without it")]
    MissingKernel {
        /// The kernel.
        name: &'static str,
        /// The module that should contain it.
        module: &'static str,
    },

    /// A shape does not fit.
    #[error("{argument}: expected shape {expected}, got {got}")]
    Shape {
        /// The argument at fault.
        argument: &'static str,
        /// The shape that fits.
        expected: String,
        /// The shape that came.
        got: String,
    },

    /// A stride does not fit.
    #[error("{argument}: expected a stride of {expected}, got {got}")]
    Stride {
        /// The argument at fault.
        argument: &'static str,
        /// Strides that fit.
        expected: String,
        /// The stride that came, in elements.
        got: usize,
    },

    /// An option of a loss has a meaningless value.
    #[error("{option}: expected {expected}, got {got}")]
    InvalidOption {
        /// The option at fault.
        option: &'static str,
        /// Values that are valid.
        expected: &'static str,
        /// The value that came.
        got: String,
    },

    /// A target is not a class. The device finds this, and reading the loss reports it.
    #[error(
        "target: expected a class from 0 to {}, got {target} in row {row}",
        classes.saturating_sub(1)
    )]
    TargetOutOfRange {
        /// The lowest row with such a target.
        row: usize,
        /// The target.
        target: i64,
        /// The number of classes.
        classes: usize,
    },

    /// What was saved does not come from a forward pass of the same loss, logits and targets.
    #[error("saved: expected {expected}, got {got}")]
    Saved {
        /// The forward pass whose gradients the call computes.
        expected: String,
        /// The forward pass that came.
        got: String,
    },

    /// Targets that are classes have no gradient.
    #[error("{argument}: expected no gradient of classes to write, got one")]
    ClassGradient {
        /// The argument at fault.
        argument: &'static str,
    },

    /// A call asks for no gradient.
    #[error("{argument}: expected a gradient of input or target to write, got neither")]
    NoGradient {
        /// The argument at fault.
        argument: &'static str,
    },

    /// A number of elements does not fit.
    #[error("{argument}: expected {expected} elements, got {got}")]
    Length {
        /// The argument at fault.
        argument: &'static str,
        /// Elements that fit.
        expected: usize,
        /// Elements that came.
        got: usize,
    },

    /// A shape has more elements than memory has addresses, or more dimensions than
    /// [`Shape`](crate::Shape) allows.
    #[error("{argument}: {problem}")]
    InvalidShape {
        /// The argument at fault.
        argument: &'static str,
        /// What is wrong with it.
        problem: String,
    },

    /// Memory is on another device than the stream.
    #[error("{argument}: expected memory on device {expected}, got memory on device {got}")]
    Device {
        /// The argument at fault.
        argument: &'static str,
        /// The stream's device.
        expected: u32,
        /// The argument's device.
        got: u32,
    },

    /// A stream made from `CU_STREAM_PER_THREAD` is used on another thread, where that handle is
    /// another stream.
    #[error(
        "stream: expected a call on the thread that made it, since CU_STREAM_PER_THREAD is another \
         stream on each thread, got one on another thread"
    )]
    OtherThread,

    /// A view of cudarc's memory is used on another stream than the one it was made for, or a view
    /// is requested for a stream that is not cudarc's.
    #[error("{argument}: expected {expected}, got another")]
    OtherStream {
        /// The argument at fault.
        argument: &'static str,
        /// The stream that fits.
        expected: &'static str,
    },

    /// cudarc's context is not the right one.
    #[error("{argument}: expected {expected}, got another")]
    OtherContext {
        /// The argument at fault.
        argument: &'static str,
        /// The context that fits.
        expected: &'static str,
    },

    /// A call on cudarc's stream would be captured into a graph, and the library would not see its
    /// replays. With `Stream::from_raw` and `View::from_raw` calls may be captured, under the
    /// conditions stated there.
    #[error(
        "stream: expected one whose work runs, got one that is captured into a graph; make the \
         stream and the views by from_raw, whose conditions say how long what a graph uses stays"
    )]
    Capture,

    /// A null pointer was passed for a non-empty tensor.
    #[error("{argument}: expected a device address for {len} elements, got a null pointer")]
    NullPointer {
        /// The argument at fault.
        argument: &'static str,
        /// The number of elements that it should point to.
        len: usize,
    },

    /// An address is not aligned to its element type.
    #[error("{argument}: expected an address that is a multiple of {expected}, got {got:#x}")]
    Misaligned {
        /// The argument at fault.
        argument: &'static str,
        /// Bytes of an element.
        expected: usize,
        /// The address.
        got: u64,
    },

    /// Memory that a call writes overlaps other memory that it uses.
    #[error("{argument}: expected memory of its own, got memory that overlaps {other}")]
    Overlap {
        /// The argument that would be written.
        argument: &'static str,
        /// The argument that it overlaps.
        other: &'static str,
    },

    /// The device does not have that much memory left.
    #[error("no memory on device {device} for {what}: {bytes} bytes")]
    OutOfMemory {
        /// What the memory was for.
        what: Box<str>,
        /// The bytes needed.
        bytes: usize,
        /// The device's number.
        device: u32,
        /// What the driver said.
        source: DriverError,
    },

    /// A driver call failed, or a kernel failed, which the next wait reports. The source is the
    /// driver's code, as for [`DriverError`].
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A failed driver call. Its [source](std::error::Error::source) is the bare code, a
/// `cust::error::CudaError` of the package `fused-loss-cust`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{call}: {name} ({code}): {text}{}",
    report.as_ref().map_or(String::new(), |report| format!("\n{report}"))
)]
#[non_exhaustive]
pub struct DriverError {
    /// The driver's function.
    pub call: &'static str,
    /// The code it returned.
    pub code: u32,
    /// The driver's name of the code.
    pub name: String,
    /// The driver's text for the code.
    pub text: String,
    /// The emulator's report on it.
    pub report: Option<Box<str>>,
    /// The code as `cust` returned it, from which the fields above come.
    pub(crate) source: CudaError,
}
