//! Check of the permissions of the store's user.
//!
//! Without the check, a missing permission would show up in the middle of a script, at the first
//! contended lock or deferred request. So each new connection and each ping checks it.

use std::error::Error as _;

use redis::{Cmd, RedisError};

use super::{
    script_sources::CHECK_ACL,
    target::{ConnectError, RedisConnection, missing_permission},
};
use crate::error::Error;
use crate::store::key_names::KeyNames;

/// Builds the check; it fails if a permission is missing.
pub(super) fn check_command(keys: &KeyNames) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command
        .arg(CHECK_ACL.source)
        .arg(0)
        .arg(keys.acl_probe_channel())
        .arg(u8::from(keys.is_clustered()));
    command
}

pub(super) async fn check_permissions(
    connection: &mut RedisConnection,
    keys: &KeyNames,
) -> Result<(), ConnectError> {
    let outcome = check_command(keys).query_async::<()>(connection).await;
    outcome.map_err(|error| ConnectError::from_redis(&error))
}

/// Converts the error of a check to the one that [`check_permissions`] would return.
pub(super) fn explain_denial(error: Error) -> Error {
    let redis_error = error.source().and_then(|source| source.downcast_ref::<RedisError>());
    match redis_error.and_then(missing_permission) {
        Some(message) => Error::config(message),
        None => error,
    }
}
