//! What the store's user may do.
//!
//! A user who may not do all that scripts do meets that in the middle of one, when a lock is contended or a request
//! deferred for the first time. So it is asked for when a connection is made, and by each ping.

use std::error::Error as _;

use redis::{Cmd, RedisError};

use super::{
    KeyNames,
    scripts::CHECK_ACL,
    target::{ConnectError, RedisConnection, missing_permission},
};
use crate::error::Error;

/// An error if not.
pub(super) fn check_command(keys: &KeyNames) -> Cmd {
    let mut question = redis::cmd("EVAL");
    question
        .arg(CHECK_ACL.source)
        .arg(0)
        .arg(keys.acl_probe_channel())
        .arg(u8::from(keys.is_clustered()));
    question
}

pub(super) async fn check_permissions(
    connection: &mut RedisConnection,
    keys: &KeyNames,
) -> Result<(), ConnectError> {
    let answer = check_command(keys).query_async::<()>(connection).await;
    answer.map_err(|error| ConnectError::from_redis(&error))
}

/// What the question was told, in the words of [`check_permissions`].
pub(super) fn explain_denial(error: Error) -> Error {
    let answer = error.source().and_then(|source| source.downcast_ref::<RedisError>());
    match answer.and_then(missing_permission) {
        Some(sentence) => Error::config(sentence),
        None => error,
    }
}
