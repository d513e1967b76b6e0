//! [`LocalOperator`]: a guard that admits the users of the machine itself.

use super::{
    console_guard::{ConsoleGuard, GuardVerdict},
    guard_request::GuardRequest,
};
use crate::admin::{Operator, Permission};

/// Guard that admits the users of the machine itself, as operator `local`.
///
/// It refuses every request that [`LoopbackGuard`](crate::driver::LoopbackGuard) refuses: one of
/// another peer, one that came through a proxy, and one for another host than this machine, as a
/// page of another site can send it (DNS rebinding).
///
/// ```
/// use lockgate::{admin::Permission, console::LocalOperator};
///
/// let guard = LocalOperator::new(Permission::Act);
/// # drop(guard);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LocalOperator {
    permission: Permission,
}

impl LocalOperator {
    /// Creates the guard. Every user of the machine gets the permission.
    #[must_use]
    pub fn new(permission: Permission) -> Self {
        Self { permission }
    }
}

impl<N: ?Sized> ConsoleGuard<N> for LocalOperator {
    fn admit(&self, request: &GuardRequest, _: &N) -> GuardVerdict {
        if request.is_local() {
            GuardVerdict::Admit(Operator::new("local", self.permission))
        } else {
            GuardVerdict::Refuse
        }
    }
}
