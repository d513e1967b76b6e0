//! `AccessListDocument`: the form of access lists in a configuration.

use serde::{Deserialize, Serialize};

use super::access_lists::AccessLists;
use crate::{error::Error, key::Key};

/// Networks and stored keys of both lists.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AccessListDocument {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) allow_keys: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) deny: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) deny_keys: Vec<String>,
}

impl TryFrom<AccessListDocument> for AccessLists {
    type Error = Error;

    fn try_from(document: AccessListDocument) -> Result<Self, Error> {
        let mut lists = Self::new().try_allow(document.allow)?.try_deny(document.deny)?;
        for key in document.allow_keys {
            lists = lists.allow_key(stored_key("allow_keys", &key)?);
        }
        for key in document.deny_keys {
            lists = lists.deny_key(stored_key("deny_keys", &key)?);
        }
        Ok(lists)
    }
}

/// Returns the key of this stored form. Another text would be the key of no request.
fn stored_key(field: &str, text: &str) -> Result<Key, Error> {
    let key = Key::from_operator_name(text);
    if key.as_str() != text {
        return Err(Error::setting(format!(
            "AccessLists: {field}: `{text}` is no key; write it as it is stored, such as e:user::7"
        )));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_their_json_form() {
        let lists = AccessLists::new()
            .allow(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])
            .allow_key(Key::header("x-api-key", b"batch"))
            .allow_key(Key::custom("internal"))
            .deny(["203.0.113.0/24", "203.0.113.128/25", "::/0"])
            .deny_key(Key::extension("user", "7"));
        let json = serde_json::to_value(&lists).expect("it has a JSON form");
        assert_eq!(
            json["allow"],
            serde_json::json!(["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"])
        );
        assert_eq!(json["deny"], serde_json::json!(["203.0.113.0/24", "::/0"]));
        assert_eq!(json["allow_keys"][0], "c:::internal");
        assert_eq!(json["deny_keys"], serde_json::json!(["e:user::7"]));
        let parsed: AccessLists = serde_json::from_value(json.clone()).expect("its own form");
        assert_eq!(serde_json::to_value(&parsed).expect("it has a JSON form"), json);
        assert_eq!(serde_json::to_string(&AccessLists::new()).expect("a JSON form"), "{}");
    }

    #[test]
    fn mistyped_lists_are_errors_that_name_the_entry() {
        for (json, problem) in [
            (r#"{"allow":["here"]}"#, "AccessLists::allow: `here`"),
            (r#"{"deny":["::/129"]}"#, "AccessLists::deny: `::/129`"),
            (r#"{"deny_keys":["7"]}"#, "AccessLists: deny_keys: `7` is no key"),
            (r#"{"denied":[]}"#, "unknown field `denied`"),
        ] {
            let error = serde_json::from_str::<AccessLists>(json).expect_err(json).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
