//! `RequestKind`: the request type of a framework.

use std::any::Any;

/// Marker for the request type of a framework.
///
/// The layers are generic over it. Closures of the application get its [`Native`](Self::Native)
/// request. With the feature `tower`, every `middleware::Framework` is one.
pub trait RequestKind: 'static {
    /// Request type that closures of the application get.
    type Native: ?Sized + 'static;

    /// Reads the value of type `T` in the request's extensions; `None` if it has none.
    fn read_extension<T: Send + Sync + 'static, O>(
        request: &Self::Native,
        read: impl FnOnce(&T) -> O,
    ) -> Option<O>;

    /// Returns the object by which the replayer of this framework puts a restored snapshot into the
    /// extensions of a run. It is an element of
    /// [`ReplayMarker::restored_snapshots`](super::ReplayMarker::restored_snapshots).
    fn extension_inserter<T: Clone + Send + Sync + 'static>(value: T) -> impl Any + Send + Sync;
}

/// Finds a `T` in the request's extensions.
pub(crate) fn find_extension<R: RequestKind, T: Clone + Send + Sync + 'static>(
    request: &R::Native,
) -> Option<T> {
    R::read_extension(request, T::clone)
}

/// Requests of unit tests, which have no framework.
#[cfg(test)]
impl RequestKind for () {
    type Native = ();

    fn read_extension<T: Send + Sync + 'static, O>((): &(), _: impl FnOnce(&T) -> O) -> Option<O> {
        None
    }

    fn extension_inserter<T: Clone + Send + Sync + 'static>(value: T) -> impl Any + Send + Sync {
        value
    }
}
