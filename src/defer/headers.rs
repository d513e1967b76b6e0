//! Which header fields are stored, of requests and of responses.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::{key::hex, store::JobId};

/// Fields that belong to one connection, not to the request (RFC 9110 section 7.6.1), and those that
/// are about this exchange alone: its length, `Expect` (10.1.1), `Prefer` (RFC 7240), and `Accept-Encoding`: whoever reads
/// the response later says which codings he knows then. Conditions
/// (`If-Match`) stay, since they are about the resource, and hold or fail when the request runs; so does
/// `Range`, which means nothing in the methods that are deferred (RFC 9110 section 14.2).
const NOT_STORED: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    "prefer",
    "accept-encoding",
];

/// Fields of ours begin like this: words between services about locks and runs, good for one call and for a
/// moment.
const OURS: &str = "lockgate-";

/// Fields that say who the client is. A stored copy would outlive what it was given for.
const CREDENTIALS: &[&str] = &["authorization", "cookie", "proxy-authorization"];

/// Fields that are stored or not, by their lower-case names.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    /// Stored though they are a credential, or one connection's.
    pub(super) keep: Vec<String>,
    /// Credentials, besides those that everybody knows.
    pub(super) credentials: Vec<String>,
}

impl Fields {
    fn keeps(&self, name: &str) -> bool {
        self.keep.iter().any(|keep| keep == name)
    }

    /// All that say who the client is.
    fn credentials(&self) -> impl Iterator<Item = &str> {
        CREDENTIALS.iter().copied().chain(self.credentials.iter().map(String::as_str))
    }
}

/// Response fields that are kept: what the content is, and what a browser may do with it. `Set-Cookie` is not among
/// them: whoever reads the status resource is not necessarily whom the cookie is for.
const RESPONSE: &[&str] = &[
    "allow",
    "content-type",
    "content-language",
    "content-encoding",
    "content-disposition",
    "content-location",
    "content-security-policy",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "etag",
    "last-modified",
    "link",
    "location",
    "permissions-policy",
    "referrer-policy",
    "warning",
    "x-content-type-options",
    "x-frame-options",
];

/// Header fields in order, repeats kept.
pub(super) type Headers = Vec<(String, Vec<u8>)>;

/// True if it carries a credential that is not kept: without it, it would run as somebody else. Whether the
/// field is nominated by `Connection` does not count: that must not make a credential vanish.
pub(super) fn carries_credential(has: impl Fn(&str) -> bool, fields: &Fields) -> bool {
    fields.credentials().any(|name| !fields.keeps(name) && has(name))
}

/// What is stored of a request.
pub(super) fn of_request(headers: &Headers, fields: &Fields) -> Headers {
    let nominated: Vec<String> = headers
        .iter()
        .filter(|(name, _)| name == "connection")
        .flat_map(|(_, value)| value.split(|&b| b == b','))
        .map(|token| String::from_utf8_lossy(token.trim_ascii()).to_ascii_lowercase())
        .collect();
    let stays = |name: &String| {
        let dropped = nominated.contains(name)
            || NOT_STORED.contains(&name.as_str())
            || fields.credentials().any(|credential| credential == name);
        !name.starts_with(OURS) && (!dropped || fields.keeps(name))
    };
    headers.iter().filter(|(name, _)| stays(name)).cloned().collect()
}

/// What is stored of a response, with these fields besides.
pub(super) fn of_response(headers: Headers, more: &[String]) -> Headers {
    let kept = |name: &String| RESPONSE.contains(&name.as_str()) || more.contains(name);
    headers.into_iter().filter(|(name, _)| kept(name)).collect()
}

/// The field that tells a handler which requests are the same one.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// For a request whose client has sent none: the same in every run of a job, and of no use to find the
/// job by, which whoever logs such keys could otherwise do.
#[expect(clippy::indexing_slicing, reason = "it has 32 bytes")]
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub(super) fn made_key(id: &JobId) -> String {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(b"lockgate idempotency key 1").expect("a key of any length");
    mac.update(id.as_str().as_bytes());
    format!("\"{}\"", hex(&mac.finalize().into_bytes()[..16]))
}

/// Offers to go on by another version of HTTP, or by TLS, which clients make with each request of a kind, and servers
/// may ignore (RFC 9110 section 7.8).
const OFFERS: [&str; 3] = ["h2c", "http", "tls"];

/// True if the request asks for another protocol: there is nothing to send back to it later.
pub(super) fn is_upgrade(method: &str, upgrade: &[&[u8]]) -> bool {
    let asks = |protocol: &[u8]| {
        let name = protocol.split(|&b| b == b'/').next().unwrap_or_default().trim_ascii();
        !name.is_empty() && !OFFERS.iter().any(|offer| name.eq_ignore_ascii_case(offer.as_bytes()))
    };
    method == "CONNECT" || upgrade.iter().flat_map(|value| value.split(|&b| b == b',')).any(asks)
}

/// The value of an `Idempotency-Key`: a structured string (draft-ietf-httpapi-idempotency-key-header),
/// or bare, as many clients send it. `Err` if it is neither, empty, or longer than 255.
pub(super) fn idempotency_key(values: &[&[u8]]) -> Result<Option<String>, ()> {
    let [value] = values else {
        return if values.is_empty() { Ok(None) } else { Err(()) };
    };
    let text = std::str::from_utf8(value).map_err(drop)?.trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let key = quoted.unwrap_or(text);
    let plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
    if key.is_empty() || key.len() > 255 || !key.bytes().all(plain) {
        return Err(());
    }
    Ok(Some(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> Headers {
        list.iter().map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect()
    }

    #[test]
    fn connection_fields_and_those_they_nominate_are_dropped() {
        let sent =
            headers(&[("connection", "close, X-Hop"), ("x-hop", "1"), ("te", "x"), ("a", "b")]);
        assert_eq!(of_request(&sent, &Fields::default()), headers(&[("a", "b")]));
    }

    /// Or what was an answer to one client would be a page that others can be sent to.
    #[test]
    fn what_a_browser_may_not_do_is_kept_of_a_response() {
        let said = [
            ("content-security-policy", "sandbox"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("set-cookie", "a=b"),
            ("x-own", "1"),
        ];
        assert_eq!(of_response(headers(&said), &[]), headers(&said[..3]));
        assert_eq!(of_response(headers(&said), &["x-own".to_owned()]).len(), 4);
    }

    /// As curl and others do with each request over plain TCP.
    #[test]
    fn an_offer_to_go_on_by_another_version_is_no_upgrade() {
        let asks = |values: &[&str]| {
            is_upgrade("POST", &values.iter().map(|value| value.as_bytes()).collect::<Vec<_>>())
        };
        for offer in [&[][..], &["h2c"], &["H2C, HTTP/3.0", "TLS/1.0"], &[" , "]] {
            assert!(!asks(offer), "{offer:?}");
        }
        for protocol in [&["websocket"][..], &["h2c, WebSocket"], &["h2c", "connect-udp"]] {
            assert!(asks(protocol), "{protocol:?}");
        }
        assert!(is_upgrade("CONNECT", &[]));
    }

    /// Who reads it may know other codings than who sent the request.
    #[test]
    fn no_coding_is_asked_for_later() {
        let sent = headers(&[("accept", "a"), ("accept-encoding", "gzip")]);
        assert_eq!(of_request(&sent, &Fields::default()), headers(&[("accept", "a")]));
        let keep = Fields { keep: vec!["accept-encoding".to_owned()], ..Fields::default() };
        assert_eq!(of_request(&sent, &keep), sent);
    }

    #[test]
    fn what_only_we_may_say_is_dropped() {
        let sent =
            headers(&[("lockgate-held", "1;x"), ("idempotency-key", "k"), ("if-match", "x")]);
        assert_eq!(of_request(&sent, &Fields::default()), sent[1..]);
    }

    #[test]
    fn a_credential_is_kept_or_missed() {
        let sent = headers(&[("authorization", "Bearer x"), ("connection", "authorization")]);
        let has = |name: &str| sent.iter().any(|(sent, _)| sent == name);
        assert_eq!(of_request(&sent[..1].to_vec(), &Fields::default()), []);
        let keeps = |name: &str| Fields { keep: vec![name.to_owned()], ..Fields::default() };
        assert!(carries_credential(has, &keeps("cookie")));
        let keep = keeps("authorization");
        assert_eq!(of_request(&sent[..1].to_vec(), &keep), sent[..1]);
        assert!(!carries_credential(has, &keep));
        assert_eq!(of_request(&sent, &keep), sent[..1], "nominated or not");
    }

    #[test]
    fn a_field_of_ones_own_is_a_credential_if_it_is_said_to_be() {
        let sent = headers(&[("x-api-key", "k")]);
        let has = |name: &str| name == "x-api-key";
        assert!(!carries_credential(has, &Fields::default()));
        let mut fields = Fields { credentials: vec!["x-api-key".to_owned()], ..Fields::default() };
        assert!(carries_credential(has, &fields));
        assert_eq!(of_request(&sent, &fields), []);
        // As any other: stored if that is asked for as well.
        fields.keep.push("x-api-key".to_owned());
        assert!(!carries_credential(has, &fields));
        assert_eq!(of_request(&sent, &fields), sent);
    }

    #[test]
    fn a_made_key_is_that_of_its_job_and_does_not_tell_which() {
        let key = crate::key::Key::custom("a");
        let (one, two) = (JobId::new(&key), JobId::new(&key));
        assert_eq!(made_key(&one), made_key(&one));
        assert_ne!(made_key(&one), made_key(&two));
        assert!(!made_key(&one).contains(one.as_str()));
        let made = made_key(&one);
        assert!(matches!(idempotency_key(&[made.as_bytes()]), Ok(Some(_))));
    }

    #[test]
    fn an_idempotency_key_is_one_visible_word_whatever_is_sent() {
        let visible =
            |key: &str| key.bytes().all(|b| b.is_ascii_graphic() && !b"\"\\".contains(&b));
        bolero::check!().with_iterations(4_000).with_type::<Vec<Vec<u8>>>().for_each(|lines| {
            let lines: Vec<_> = lines.iter().map(|line| &line[..]).collect();
            match idempotency_key(&lines) {
                Ok(None) => assert!(lines.is_empty()),
                Ok(Some(key)) => {
                    assert!(visible(&key) && (1..=255).contains(&key.len()), "{key:?}");
                    let quoted = format!("\"{key}\"");
                    assert_eq!(idempotency_key(&[quoted.as_bytes()]), Ok(Some(key)));
                    assert_eq!(lines.len(), 1);
                }
                Err(()) => {}
            }
        });
    }

    #[test]
    fn idempotency_keys_are_quoted_or_bare() {
        assert_eq!(idempotency_key(&[]), Ok(None));
        assert_eq!(idempotency_key(&[b"\"abc\""]), Ok(Some("abc".to_owned())));
        assert_eq!(idempotency_key(&[b"abc"]), Ok(Some("abc".to_owned())));
        for bad in [&b"\"\""[..], b"", b"a b", b"\"a", &[b'x'; 256], b"\xff"] {
            assert_eq!(idempotency_key(&[bad]), Err(()), "{bad:?}");
        }
        assert_eq!(idempotency_key(&[b"a", b"b"]), Err(()));
    }
}
