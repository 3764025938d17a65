//! The table of kernels: its types, and the macros that fill it.

use crate::abi::Dtype;

/// One compiled kernel.
#[derive(Debug)]
pub struct Entry {
    /// The name of the PTX entry, e.g. `mse_forward_f32`.
    pub name: &'static str,
    /// The PTX module with this entry, e.g. `mse_f32`: one for each loss and dtype, so that a
    /// program compiles at run time only the modules that it uses.
    pub module: &'static str,
    /// The dtype that it is compiled for.
    pub dtype: Dtype,
    /// The most threads of a block. A launch has a multiple of 32 threads a block.
    pub block: u32,
    /// The least number of blocks of that size that a multiprocessor has registers for.
    pub resident: u32,
    /// `bar.sync` instructions in its PTX.
    pub barriers: u32,
    /// Bytes of the entry's one argument.
    pub args_size: usize,
    /// Runs one thread of the kernel on the CPU.
    ///
    /// # Safety
    /// 1. The argument points to the `args_size` bytes of the entry's arguments.
    /// 2. [`cuda_std`]'s machine is set, and refuses accesses that are not allowed.
    #[cfg(all(feature = "emulator", not(test)))]
    pub run: unsafe fn(*const u8),
}

/// A kernel in each of its dtypes, with arguments of type `A`.
#[derive(Debug)]
pub struct Family<A: 'static> {
    /// The name without the dtype, e.g. `mse_forward`.
    pub name: &'static str,
    /// One entry for each dtype.
    pub entries: &'static [Entry],
    pub(crate) args: core::marker::PhantomData<fn(A)>,
}

impl<A> Family<A> {
    /// The entry for `dtype`, if it is compiled.
    pub fn entry(&self, dtype: Dtype) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| entry.dtype == dtype)
    }
}

/// Every entry.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    crate::KERNELS.iter().copied().flatten().copied().flatten()
}

/// The entry called `name`.
pub fn find(name: &str) -> Option<&'static Entry> {
    all().find(|entry| entry.name == name)
}

/// The types that a kernel's body may name: `E`, the dtype's element type, and `R`, the type of its
/// arithmetic.
macro_rules! types {
    (f32) => { $crate::table::types!(@ f32); };
    (f64) => { $crate::table::types!(@ f64); };
    (f16) => { $crate::table::types!(@ $crate::element::F16); };
    (bf16) => { $crate::table::types!(@ $crate::element::Bf16); };
    (@ $element:ty) => {
        #[allow(dead_code)]
        type E = $element;
        #[allow(dead_code)]
        type R = <E as $crate::element::Element>::Real;
    };
}
pub(crate) use types;

/// Generates the families and entries of one loss. Each line describes one family: the name of its
/// constant, its pass, its body, its arguments, the most threads of a block, how many such blocks a
/// multiprocessor has registers for, the barriers in its PTX, and its dtypes if they differ from
/// those of the loss.
macro_rules! kernels {
    ($loss:ident, $dtypes:tt, $(
        $family:ident = $pass:ident: $body:expr, ($args:ty), $block:tt by $resident:expr, $barriers:tt barriers
            $(of $only:tt)?;
    )+) => {
        $(
            $crate::table::family! {
                @ [$($only)? $dtypes] $loss, $family, $pass, ($args), $block, $resident, $barriers,
                |args| $body(args)
            }
        )+

        /// The loss's kernels.
        pub static KERNELS: &[&[$crate::table::Entry]] = &[$($family.entries),+];
    };
}
pub(crate) use kernels;

/// Generates one family: an entry for each of its dtypes. With `--cfg one_dtype --cfg f32` the PTX
/// has only the entries of f32: the dtypes are compiled in parallel, because LLVM compiles a crate
/// in one thread.
macro_rules! family {
    // The family's own list of dtypes comes first, if it has one.
    (@ [$dtypes:tt $($others:tt)?] $loss:ident, $($rest:tt)+) => {
        $crate::table::family! { $loss, $dtypes, $($rest)+ }
    };
    (
        $loss:ident, [$($dtype:ident),*], $family:ident, $pass:ident, ($args:ty), $block:tt,
        $resident:expr, $barriers:tt, |$arg:ident| $call:expr
    ) => {
        $(
            #[cfg(all(target_arch = "nvptx64", any(not(one_dtype), $dtype)))]
            const _: () = {
                $crate::table::types!($dtype);
                #[unsafe(export_name = concat!(
                    stringify!($loss), "_", stringify!($pass), "_", stringify!($dtype)
                ))]
                unsafe extern "ptx-kernel" fn entry(args: $args) {
                    let $arg = &args;
                    // SAFETY: the host launches the entry under the body's conditions.
                    unsafe { $call }
                }
            };
        )*

        #[doc = concat!("The ", stringify!($pass), " kernel.")]
        pub static $family: $crate::table::Family<$args> = $crate::table::Family {
            name: concat!(stringify!($loss), "_", stringify!($pass)),
            entries: &[$({
                $crate::table::types!($dtype);
                $crate::table::Entry {
                    name: concat!(stringify!($loss), "_", stringify!($pass), "_", stringify!($dtype)),
                    module: concat!(stringify!($loss), "_", stringify!($dtype)),
                    dtype: <E as $crate::element::Element>::DTYPE,
                    block: $block,
                    resident: $resident,
                    barriers: $barriers,
                    args_size: size_of::<$args>(),
                    #[cfg(all(feature = "emulator", not(test)))]
                    run: {
                        unsafe fn run(args: *const u8) {
                            // SAFETY: `Entry::run`'s first condition.
                            let args = unsafe { args.cast::<$args>().read_unaligned() };
                            let $arg = &args;
                            // SAFETY: `Entry::run`'s second condition: the machine refuses what the
                            // body may not do.
                            unsafe { $call }
                        }
                        run
                    },
                }
            }),*],
            args: core::marker::PhantomData,
        };
    };
}
pub(crate) use family;

/// Generates the table: a module of kernels for each loss.
macro_rules! losses {
    ($($loss:ident: $kind:ident($($type:tt)*);)+) => {
        /// The kernels, by loss.
        pub mod kernels {
            $(
                #[doc = concat!("The kernels of ", stringify!($loss), ".")]
                pub mod $loss {
                    crate::$kind::kernels!($loss, $($type)*);
                }
            )+
        }

        /// Every kernel, by loss and pass.
        pub static KERNELS: &[&[&[Entry]]] = &[$(kernels::$loss::KERNELS),+];
    };
}
pub(crate) use losses;
