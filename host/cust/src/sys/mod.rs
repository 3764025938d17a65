//! The driver's C functions and types that fused-loss uses, with the names of `cuda.h`.
//!
//! A function that is not here takes one line in `functions.rs`. It is called through a table of
//! addresses, so that nothing has to be linked; [`driver`](crate::driver) fills the table.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod codes;
mod functions;
#[cfg(test)]
mod header;
mod table;
mod types;

pub use codes::CUresult;
pub(crate) use functions::Table;
pub use functions::functions::*;
pub(crate) use table::Wanted;
pub use types::*;
