//! [`ConsoleGuard`]: who may open the console.

use super::guard_request::GuardRequest;
use crate::admin::Operator;

/// Decision of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardVerdict {
    /// The request is this operator's.
    Admit(Operator),
    /// The response is 401 with a challenge for a name and a password.
    Challenge,
    /// The response is 403.
    Refuse,
}

/// Guard of the console, which decides for every request. `N` is the framework's request.
///
/// A function `Fn(&N) -> Option<Operator>` is one: `None` is refused. [`LocalOperator`] and
/// [`BasicAuth`] are ready-made ones.
///
/// ```
/// # use http::request::Parts;
/// use lockgate::{
///     admin::{Operator, Permission},
///     console::ConsoleGuard,
/// };
///
/// // Behind a proxy that authenticates its users and is the only one that can connect.
/// fn staff(request: &Parts) -> Option<Operator> {
///     let name = request.headers.get("x-authenticated-user")?.to_str().ok()?;
///     Some(Operator::new(name, Permission::Act))
/// }
/// # fn is_guard(_: impl ConsoleGuard<Parts>) {}
/// # is_guard(staff);
/// ```
///
/// [`LocalOperator`]: super::LocalOperator
/// [`BasicAuth`]: super::BasicAuth
pub trait ConsoleGuard<N: ?Sized>: Send + Sync + 'static {
    /// Decides about a request. Must not block.
    fn admit(&self, request: &GuardRequest, native: &N) -> GuardVerdict;
}

impl<N: ?Sized, F: Fn(&N) -> Option<Operator> + Send + Sync + 'static> ConsoleGuard<N> for F {
    fn admit(&self, _: &GuardRequest, native: &N) -> GuardVerdict {
        self(native).map_or(GuardVerdict::Refuse, GuardVerdict::Admit)
    }
}
