//! Closed sets of words, as metrics, logs and spans name them.

/// Defines such a set: the enum, all of it, and the name of each.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

pub(crate) use labels;
