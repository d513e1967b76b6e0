//! `LockMode`: the holders that a lock admits at the same time.

/// Lock mode: which holders a lock admits at the same time. All holders of a lock have the same
/// mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LockMode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of holders.
    Shared,
    /// At most this many holders, at least one.
    Permits(u32),
}

impl LockMode {
    /// Returns the letter of the mode on the wire.
    pub(crate) fn wire_letter(self) -> &'static str {
        match self {
            Self::Exclusive => "x",
            Self::Shared => "s",
            Self::Permits(_) => "p",
        }
    }

    /// Returns the name of the mode for spans.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits(_) => "permits",
        }
    }

    /// Returns the letter before a token in the Redis key `h`.
    pub(crate) fn member_tag(self) -> &'static str {
        if self == Self::Exclusive { "" } else { self.wire_letter() }
    }

    /// Returns the maximum number of holders for `Permits`, or 0 for modes that need no count.
    pub(crate) fn max_permits(self) -> u64 {
        match self {
            Self::Permits(max) => max.into(),
            Self::Exclusive | Self::Shared => 0,
        }
    }
}
