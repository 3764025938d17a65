//! Types for sets of flags, with the functions that `cust`'s flags get from `bitflags`.

/// Defines a set of flags of the driver.
macro_rules! flags {
    (
        $(#[$of_type:meta])* $type:ident {
            $($(#[$of_flag:meta])* $flag:ident = $bits:literal;)*
        }
    ) => {
        $(#[$of_type])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $type(u32);

        impl $type {
            $($(#[$of_flag])* pub const $flag: Self = $type($bits);)*

            /// No flag.
            pub const fn empty() -> Self {
                $type(0)
            }

            /// The flags as the driver takes them.
            pub const fn bits(self) -> u32 {
                self.0
            }
        }

        impl std::ops::BitOr for $type {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                $type(self.0 | other.0)
            }
        }
    };
}

pub(crate) use flags;
