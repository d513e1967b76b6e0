//! `Clone` and `Debug` of a key source, and its conversions from tuples.

use std::{fmt, sync::Arc};

use super::{KeySource, KeySourceKind};
use crate::gate::request_kind::RequestKind;

impl<R: RequestKind> Clone for KeySource<R> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            KeySourceKind::ClientAddress(address) => {
                KeySourceKind::ClientAddress(Arc::clone(address))
            }
            KeySourceKind::PathParam(named) => KeySourceKind::PathParam(Arc::clone(named)),
            KeySourceKind::Header(named) => KeySourceKind::Header(Arc::clone(named)),
            KeySourceKind::Route => KeySourceKind::Route,
            KeySourceKind::Function { key_prefix, read_value } => KeySourceKind::Function {
                key_prefix: Arc::clone(key_prefix),
                read_value: Arc::clone(read_value),
            },
            KeySourceKind::Extension { key_prefix, read_value, missing_message } => {
                KeySourceKind::Extension {
                    key_prefix: Arc::clone(key_prefix),
                    read_value: Arc::clone(read_value),
                    missing_message: Arc::clone(missing_message),
                }
            }
            KeySourceKind::PathParams(names) => KeySourceKind::PathParams(Arc::clone(names)),
            KeySourceKind::Functions { key_prefix, read_values } => KeySourceKind::Functions {
                key_prefix: Arc::clone(key_prefix),
                read_values: Arc::clone(read_values),
            },
            KeySourceKind::Combined(parts) => KeySourceKind::Combined(Arc::clone(parts)),
        })
    }
}

impl<R: RequestKind> fmt::Debug for KeySource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            KeySourceKind::ClientAddress(address) => write!(f, "{address:?}"),
            KeySourceKind::PathParam(named) => write!(f, "path_param({})", named.name),
            KeySourceKind::Header(named) => write!(f, "header({})", named.name),
            KeySourceKind::Route => f.write_str("route"),
            KeySourceKind::Function { key_prefix, .. }
            | KeySourceKind::Functions { key_prefix, .. } => write!(f, "function({key_prefix})"),
            KeySourceKind::Extension { key_prefix, .. } => write!(f, "extension({key_prefix})"),
            KeySourceKind::PathParams(group) => write!(f, "path_params({})", group.joined_name),
            KeySourceKind::Combined(parts) => write!(f, "{:?} and {:?}", parts.0, parts.1),
        }
    }
}

impl<R: RequestKind, A, B> From<(A, B)> for KeySource<R>
where
    A: Into<Self>,
    B: Into<Self>,
{
    fn from((a, b): (A, B)) -> Self {
        a.into().and(b)
    }
}

impl<R: RequestKind, A, B, C> From<(A, B, C)> for KeySource<R>
where
    A: Into<Self>,
    B: Into<Self>,
    C: Into<Self>,
{
    fn from((a, b, c): (A, B, C)) -> Self {
        a.into().and(b).and(c)
    }
}

impl<R: RequestKind, A, B, C, D> From<(A, B, C, D)> for KeySource<R>
where
    A: Into<Self>,
    B: Into<Self>,
    C: Into<Self>,
    D: Into<Self>,
{
    fn from((a, b, c, d): (A, B, C, D)) -> Self {
        a.into().and(b).and(c).and(d)
    }
}
