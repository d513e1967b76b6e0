//! Description of a key source for operators.

use super::{KeySource, KeySourceKind};
use crate::gate::request_kind::RequestKind;

impl<R: RequestKind> KeySource<R> {
    /// Returns what the requests are told apart by, such as `header x-api-key`.
    pub(crate) fn description(&self) -> String {
        match &self.0 {
            KeySourceKind::ClientAddress(_) => "client address".to_owned(),
            KeySourceKind::PathParam(named) => format!("path parameter {}", named.name),
            KeySourceKind::PathParams(group) => format!("path parameters {}", group.joined_name),
            KeySourceKind::Header(named) => format!("header {}", named.name),
            KeySourceKind::Route => "route".to_owned(),
            KeySourceKind::Function { key_prefix, .. }
            | KeySourceKind::Functions { key_prefix, .. } => {
                format!("key {}", name_in_prefix(key_prefix))
            }
            KeySourceKind::Extension { key_prefix, .. } => {
                format!("extension {}", name_in_prefix(key_prefix))
            }
            KeySourceKind::Combined(parts) => {
                format!("{} and {}", parts.0.description(), parts.1.description())
            }
        }
    }
}

/// Returns the name in `<kind>:<name>::`.
fn name_in_prefix(key_prefix: &str) -> &str {
    key_prefix.split(':').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_names_the_parts_of_the_key() {
        let source: KeySource<()> =
            (KeySource::ip(), KeySource::header("X-Api-Key"), KeySource::route()).into();
        assert_eq!(source.description(), "client address and header x-api-key and route");
        assert_eq!(KeySource::<()>::path_param("id").description(), "path parameter id");
        let user = KeySource::<()>::from_fn("user", |()| None);
        assert_eq!(user.description(), "key user");
        assert_eq!(KeySource::<()>::extension::<u64>("plan").description(), "extension plan");
    }
}
