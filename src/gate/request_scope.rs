//! `RequestScope`: a value that code within a request finds without the request.
//!
//! A middleware that rebuilds the request loses its extensions, and a function far below the
//! handler never has them. A gate therefore also puts its extension into a task-local while the
//! inner service runs. Tasks that the handler spawns are outside of it.

use std::{any::Any, fmt, future::Future, sync::Arc};

use futures_util::future::Either;

tokio::task_local! {
    static CURRENT_SCOPE: RequestScope;
}

/// Value that a gate makes available within the inner call; empty for most gates.
#[derive(Clone, Default)]
pub struct RequestScope(Option<Arc<dyn Any + Send + Sync>>);

impl RequestScope {
    /// Creates a scope with this value, which hides that of an outer gate.
    pub(crate) fn with_value<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// Returns the value of the current scope, if it is of this type.
    pub(crate) fn current_value<T: Any + Clone>() -> Option<T> {
        CURRENT_SCOPE.try_with(|scope| scope.0.as_ref()?.downcast_ref().cloned()).ok().flatten()
    }

    /// Returns the current scope, for another task that continues the request.
    #[must_use]
    pub fn capture() -> Self {
        CURRENT_SCOPE.try_with(Clone::clone).unwrap_or_default()
    }

    /// Runs one step of the inner call within this scope, such as the call itself, or a poll of the
    /// response body.
    pub fn run_sync<R>(&self, step: impl FnOnce() -> R) -> R {
        match self.0 {
            Some(_) => CURRENT_SCOPE.sync_scope(self.clone(), step),
            None => step(),
        }
    }

    /// Runs the inner call within this scope.
    pub fn run<F: Future>(self, inner: F) -> impl Future<Output = F::Output> + use<F> {
        match self.0 {
            Some(_) => Either::Left(CURRENT_SCOPE.scope(self, inner)),
            None => Either::Right(inner),
        }
    }
}

impl fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestScope").field("set", &self.0.is_some()).finish()
    }
}
