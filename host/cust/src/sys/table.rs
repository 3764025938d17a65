//! The macro behind the list of functions.

use std::ffi::c_int;

/// A function to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Its exported name.
    pub(crate) name: &'static str,
    /// The first version of CUDA whose driver has it, if an older driver will do without.
    pub(crate) since: Option<c_int>,
}

impl Wanted {
    /// The function of a line, which names one version or none.
    pub(crate) const fn new(name: &'static str, since: &[c_int]) -> Self {
        let since = match since {
            [since, ..] => Some(*since),
            [] => None,
        };
        Wanted { name, since }
    }
}

/// Defines the table of addresses, and for each of its lines a function that calls through it.
///
/// A line that ends in `since 11080` is one that drivers before CUDA 11.8 lack: a call of it then
/// returns `CUDA_ERROR_NOT_SUPPORTED`. Without any other line a driver is refused.
macro_rules! driver_functions {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(since $since:literal)?;)+) => {
        pub(crate) struct Table {
            /// What a newer driver has.
            pub(crate) missing: Vec<Wanted>,
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> CUresult,)+
        }

        impl Table {
            /// The functions, and the types of their parameters.
            #[cfg(test)]
            pub(crate) const LINES: &'static [(Wanted, &'static [&'static str])] = &[$((
                Wanted::new(stringify!($name), &[$($since)?]),
                &[$(stringify!($type)),*],
            ),)+];

            /// # Safety
            /// `find` returns null or the address of the driver's function of that name, which has
            /// the parameters that `cuda.h` declares.
            pub(crate) unsafe fn new(find: &dyn Fn(Wanted) -> *const c_void) -> Self {
                let mut missing = Vec::new();
                Table {
                    $($name: {
                        unsafe extern "C" fn absent($(_: $type),*) -> CUresult {
                            CUresult::CUDA_ERROR_NOT_SUPPORTED
                        }
                        let wanted = Wanted::new(stringify!($name), &[$($since)?]);
                        let address = find(wanted);
                        if address.is_null() {
                            missing.push(wanted);
                            absent
                        } else {
                            // SAFETY: the caller's condition; the line has the parameters of
                            // `cuda.h`.
                            unsafe {
                                std::mem::transmute::<
                                    *const c_void,
                                    unsafe extern "C" fn($($type),*) -> CUresult,
                                >(address)
                            }
                        }
                    },)+
                    missing,
                }
            }
        }

        pub(super) mod functions {
            use super::*;
            $(
                #[doc = concat!("The driver's `", stringify!($name), "`.")]
                ///
                /// `CUDA_ERROR_NO_DEVICE` where there is no driver.
                $(
                    ///
                    #[doc = concat!(
                        "`CUDA_ERROR_NOT_SUPPORTED` where the driver is older than version ",
                        stringify!($since), "."
                    )]
                )?
                ///
                /// # Safety
                /// 1. Every pointer is valid for what the driver reads or writes there, or null
                ///    where the driver allows it, for as long as the driver's documentation says.
                /// 2. Every handle is one that the driver returned, and that is not destroyed yet.
                /// 3. Memory on the device that the call uses is there, and used by nothing else at
                ///    that time, until its work on the stream is done.
                pub unsafe fn $name($($arg: $type),*) -> CUresult {
                    match crate::driver::table() {
                        // SAFETY: the caller's conditions are the driver's.
                        Some(table) => unsafe { (table.$name)($($arg),*) },
                        None => CUresult::CUDA_ERROR_NO_DEVICE,
                    }
                }
            )+
        }
    };
}

pub(super) use driver_functions;
