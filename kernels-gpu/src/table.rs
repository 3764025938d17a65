//! The table of kernels.

use crate::abi::Dtype;

/// One compiled kernel.
#[derive(Debug)]
pub struct Entry {
    /// The name of the PTX entry, e.g. `mse_forward_f32`.
    pub name: &'static str,
    /// The PTX module that holds it, one a loss and dtype, e.g. `mse_f32`: a program compiles at run
    /// time only the modules it uses.
    pub module: &'static str,
    /// The dtype it is compiled for.
    pub dtype: Dtype,
    /// Threads of a block, always.
    pub block: u32,
    /// `bar.sync` instructions in its PTX.
    pub barriers: u32,
    /// Bytes of its one argument.
    pub args_size: usize,
    /// Runs one thread of it on the CPU.
    ///
    /// # Safety
    /// 1. The argument points to the `args_size` bytes of the entry's arguments.
    /// 2. [`cuda_std`]'s machine is set, and refuses what is not allowed.
    #[cfg(not(target_arch = "nvptx64"))]
    pub run: unsafe fn(*const u8),
}

/// A kernel in each of its dtypes, with arguments of type `A`.
#[derive(Debug)]
pub struct Family<A: 'static> {
    /// The name without the dtype, e.g. `mse_forward`.
    pub name: &'static str,
    /// One entry a dtype.
    pub entries: &'static [Entry],
    pub(crate) args: core::marker::PhantomData<fn(A)>,
}

impl<A> Family<A> {
    /// The entry for `dtype`, if it is compiled.
    pub fn entry(&self, dtype: Dtype) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| entry.dtype == dtype)
    }
}

/// The entry called `name`.
pub fn find(name: &str) -> Option<&'static Entry> {
    crate::KERNELS.iter().copied().flatten().find(|entry| entry.name == name)
}

/// Stamps out the table; lib.rs has its one use. `E` in a body stands for the dtype's element type.
macro_rules! kernels {
    ($(
        $family:ident = $loss:ident $pass:ident: $body:expr, ($args:ty), $block:expr, $barriers:literal barriers,
        [$($dtype:ident $element:ty),+];
    )+) => {
        $($(
            #[cfg(target_arch = "nvptx64")]
            const _: () = {
                #[allow(dead_code)]
                type E = $element;
                #[unsafe(export_name = concat!(stringify!($loss), "_", stringify!($pass), "_", stringify!($dtype)))]
                unsafe extern "ptx-kernel" fn entry(args: $args) {
                    // SAFETY: whoever launches the entry meets the body's conditions.
                    unsafe { $body(&args) }
                }
            };
        )+)+

        $(
            #[doc = concat!("The ", stringify!($pass), " kernel of ", stringify!($loss), ".")]
            pub static $family: $crate::table::Family<$args> = $crate::table::Family {
                name: concat!(stringify!($loss), "_", stringify!($pass)),
                entries: &[$({
                    #[allow(dead_code)]
                    type E = $element;
                    $crate::table::Entry {
                        name: concat!(stringify!($loss), "_", stringify!($pass), "_", stringify!($dtype)),
                        module: concat!(stringify!($loss), "_", stringify!($dtype)),
                        dtype: <E as $crate::element::Element>::DTYPE,
                        block: $block,
                        barriers: $barriers,
                        args_size: size_of::<$args>(),
                        #[cfg(not(target_arch = "nvptx64"))]
                        run: {
                            unsafe fn run(args: *const u8) {
                                // SAFETY: `Entry::run`'s first condition.
                                let args = unsafe { args.cast::<$args>().read_unaligned() };
                                // SAFETY: the machine refuses what the body may not do.
                                unsafe { $body(&args) }
                            }
                            run
                        },
                    }
                }),+],
                args: core::marker::PhantomData,
            };
        )+

        /// Every kernel.
        pub static KERNELS: &[&[$crate::table::Entry]] = &[$($family.entries),+];
    };
}
pub(crate) use kernels;
