//! `ActixFramework`: the request type of actix-web, for the core's layers.

use std::any::Any;

use actix_web::{HttpMessage as _, HttpRequest};
use lockgate::driver::RequestKind;

use crate::app_replayer::extension_inserter;

/// [`RequestKind`] of actix-web 4, the type parameter of the core's layers.
#[derive(Debug, Clone, Copy)]
pub struct ActixFramework;

/// Part of a key, for `by` of the layers: a tuple of up to four parts is one key.
///
/// All constructors are those of the [core's type](lockgate::driver::KeySource).
pub type KeyPart = lockgate::driver::KeySource<ActixFramework>;

impl RequestKind for ActixFramework {
    type Native = HttpRequest;

    fn read_extension<T: Send + Sync + 'static, O>(
        request: &HttpRequest,
        read: impl FnOnce(&T) -> O,
    ) -> Option<O> {
        request.extensions().get().map(read)
    }

    fn extension_inserter<T: Clone + Send + Sync + 'static>(value: T) -> impl Any + Send + Sync {
        extension_inserter(value)
    }
}
