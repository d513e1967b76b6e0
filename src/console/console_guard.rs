//! [`ConsoleGuard`]: who may open the console.

use std::sync::Arc;

use super::{console_assets::with_security_headers, guard_request::GuardRequest};
use crate::{
    admin::Operator,
    gate::GateRequest,
    reply::{Reply, problem},
};

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

impl<N: ?Sized, G: ConsoleGuard<N> + ?Sized> ConsoleGuard<N> for Arc<G> {
    fn admit(&self, request: &GuardRequest, native: &N) -> GuardVerdict {
        (**self).admit(request, native)
    }
}

/// Asks the guard about a request, for an integration's own pages of operators.
///
/// # Errors
///
/// Returns the reply if the guard refuses the request: 401 or 403.
pub fn admit_operator<V: GateRequest>(
    guard: &(impl ConsoleGuard<V::NativeRequest> + ?Sized),
    view: &mut V,
) -> Result<Operator, Reply> {
    let request = GuardRequest::new(view);
    match guard.admit(&request, view.native_request()) {
        GuardVerdict::Admit(operator) => Ok(operator),
        GuardVerdict::Challenge => Err(challenge()),
        GuardVerdict::Refuse => Err(refusal("This page is not open to this client")),
    }
}

/// Returns the 401 that asks for a name and a password.
fn challenge() -> Reply {
    let reply = Reply::problem(401, problem::NOT_AUTHORIZED, "Name and password are needed");
    with_security_headers(
        reply.header("www-authenticate", r#"Basic realm="lockgate console", charset="UTF-8""#),
    )
}

/// Returns a 403.
pub(super) fn refusal(title: &str) -> Reply {
    with_security_headers(Reply::problem(403, problem::NOT_AUTHORIZED, title))
}
