//! Reading of the keys of a request from its key source.

use super::{KeySource, KeySourceKind};
use crate::{
    gate::{
        gate_request::{DuplicateHeader, GateRequest, RouteMatch, single_header_or_host},
        key_error::KeyError,
        named_source::{NamedSource, ParamGroup, read_param},
        request_kind::RequestKind,
    },
    key::{Key, credential_value},
};

/// Most keys of one request. Each is a lock to acquire, and clients may choose their number.
const MAX_KEYS: usize = 32;

impl<R: RequestKind> KeySource<R> {
    /// Reads all keys of a request in their order, each once; at least one.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if the request has none, or more than 32.
    pub fn read_all<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<Vec<Key>, KeyError> {
        let mut keys = match &self.0 {
            KeySourceKind::PathParams(group) => {
                let ParamGroup { param_names, canonicalize, joined_name } = &**group;
                let key = |name: &String| {
                    Ok(Key::path_param(name, &read_param(name, *canonicalize, view)?)
                        .named(joined_name))
                };
                param_names.iter().map(key).collect::<Result<Vec<_>, _>>()?
            }
            KeySourceKind::Functions { key_prefix, read_values } => {
                let key = |value: &String| Key::with_value(key_prefix, value.as_bytes());
                read_values(view.native_request()).iter().map(key).collect::<Vec<_>>()
            }
            KeySourceKind::Combined(parts) => {
                let (left_keys, right_keys) = (parts.0.read_all(view)?, parts.1.read_all(view)?);
                left_keys.iter().flat_map(|a| right_keys.iter().map(|b| a.and(b))).collect()
            }
            _ => return Ok(vec![self.read(view)?]),
        };
        dedup_keys(&mut keys);
        match keys.len() {
            0 if view.route() == RouteMatch::Unmatched => Err(KeyError::Unmatched),
            0 => Err(KeyError::BadRequest("The request can't be identified")),
            n if n > MAX_KEYS => Err(KeyError::BadRequest("The request names too many resources")),
            _ => Ok(keys),
        }
    }

    /// Reads the key of a request; several keys are combined into one.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if the request has none.
    pub fn read<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<Key, KeyError> {
        match &self.0 {
            KeySourceKind::Combined(parts) if !self.has_multiple_keys() => {
                Ok(parts.0.read(view)?.and(&parts.1.read(view)?))
            }
            KeySourceKind::PathParams(_)
            | KeySourceKind::Functions { .. }
            | KeySourceKind::Combined(_) => {
                let keys = self.read_all(view)?.into_iter();
                keys.reduce(|combined, key| combined.and(&key))
                    .ok_or(KeyError::BadRequest("The request can't be identified"))
            }
            KeySourceKind::ClientAddress(address) => address.key(view),
            KeySourceKind::PathParam(named) => {
                let value = read_param(&named.name, named.canonicalize, view)?;
                Ok(Key::with_value(&named.key_prefix, value.as_bytes()))
            }
            KeySourceKind::Header(named) => read_header(named, view),
            KeySourceKind::Route => read_route(view),
            KeySourceKind::Function { key_prefix, read_value } => {
                let value = read_value(view.native_request());
                key_of_value(key_prefix, value, view, || {
                    KeyError::BadRequest("The request can't be identified")
                })
            }
            KeySourceKind::Extension { key_prefix, read_value, missing_message } => {
                let value = read_value(view.native_request());
                key_of_value(key_prefix, value, view, || {
                    KeyError::Misconfigured(missing_message.to_string())
                })
            }
        }
    }
}

fn read_header<V: GateRequest>(named: &NamedSource, view: &mut V) -> Result<Key, KeyError> {
    let sent = match &named.header_name {
        Some(header_name) => single_header_or_host(&*view, header_name),
        // Not a valid header name, so no request has it.
        None => Ok(None),
    };
    let title = match sent {
        Ok(Some(value)) => {
            return Ok(match credential_value(&named.name, value) {
                Some(credential_value) => {
                    Key::with_hashed_value(&named.key_prefix, &credential_value)
                }
                None => Key::with_value(&named.key_prefix, value),
            });
        }
        Ok(None) => "A required header is missing",
        Err(DuplicateHeader) => "A header was sent more than once",
    };
    match view.route() {
        RouteMatch::Unmatched => Err(KeyError::Unmatched),
        _ => Err(KeyError::BadRequest(title)),
    }
}

fn read_route<V: GateRequest>(view: &mut V) -> Result<Key, KeyError> {
    match view.route() {
        RouteMatch::Matched(pattern) => Ok(Key::route(&pattern)),
        RouteMatch::Unmatched => Err(KeyError::Unmatched),
        RouteMatch::Unknown => Err(KeyError::Misconfigured(
            "by_route() found no route; put the layer inside the router".to_owned(),
        )),
    }
}

/// Returns the key of the value that a function has returned. `missing` is the error of a request
/// without one, unless that matches no route.
fn key_of_value<V: GateRequest>(
    key_prefix: &str,
    value: Option<String>,
    view: &mut V,
    missing: impl FnOnce() -> KeyError,
) -> Result<Key, KeyError> {
    match value {
        Some(value) => Ok(Key::with_value(key_prefix, value.as_bytes())),
        None if view.route() == RouteMatch::Unmatched => Err(KeyError::Unmatched),
        None => Err(missing()),
    }
}

/// Removes duplicates and keeps the order.
pub(crate) fn dedup_keys(keys: &mut Vec<Key>) {
    if keys.len() < 2 {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
}
