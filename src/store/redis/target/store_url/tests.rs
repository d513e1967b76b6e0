//! Valid and invalid URLs.

use super::*;
use crate::error::ErrorKind;

fn host_port(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

fn single_server_url(host: &str, port: u16) -> StoreUrl {
    url_with_servers(ServerAddresses::Single(host_port(host, port)))
}

fn url_with_servers(servers: ServerAddresses) -> StoreUrl {
    let (credentials, sentinel_credentials) =
        (LoginCredentials::default(), LoginCredentials::default());
    StoreUrl {
        servers,
        tls: false,
        credentials,
        sentinel_credentials,
        database: None,
        namespace: None,
    }
}

fn credentials(user: &str, password: &str) -> LoginCredentials {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    LoginCredentials { user: some(user), password: some(password) }
}

fn namespace(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn single_server_urls_are_parsed() {
    let local = || single_server_url("127.0.0.1", 6379);
    let secure = |address| StoreUrl { tls: true, ..address };
    let valid = [
        ("redis://127.0.0.1", local()),
        ("redis://127.0.0.1/", local()),
        ("REDIS://127.0.0.1:6379/?ns=shop", StoreUrl { namespace: namespace("shop"), ..local() }),
        (
            "valkey://cache.local:7000/3",
            StoreUrl { database: Some(3), ..single_server_url("cache.local", 7000) },
        ),
        ("rediss://cache", secure(single_server_url("cache", 6379))),
        ("valkeys://[::1]:7001", secure(single_server_url("::1", 7001))),
        ("redis://[::1]", single_server_url("::1", 6379)),
        ("redis://:pw@127.0.0.1", StoreUrl { credentials: credentials("", "pw"), ..local() }),
        (
            "redis://me:p%40%2Fw@127.0.0.1",
            StoreUrl { credentials: credentials("me", "p@/w"), ..local() },
        ),
        (
            "redis://me:p@w@127.0.0.1/0",
            StoreUrl { credentials: credentials("me", "p@w"), database: Some(0), ..local() },
        ),
    ];
    for (url, expected) in valid {
        assert_eq!(StoreUrl::parse(url).expect(url), expected, "{url}");
    }
}

#[test]
fn unix_socket_urls_are_parsed() {
    let socket = || url_with_servers(ServerAddresses::UnixSocket("/run/redis.sock".into()));
    let full = StoreUrl { database: Some(2), credentials: credentials("me", "pw"), ..socket() };
    let with_password = |password| StoreUrl { credentials: credentials("", password), ..socket() };
    let valid = [
        ("unix:///run/redis.sock", socket()),
        ("redis+unix:///run/redis.sock?ns=a", StoreUrl { namespace: namespace("a"), ..socket() }),
        ("valkey+unix:///run/redis.sock?db=2&user=me&pass=pw", full),
        ("unix:///run/redis.sock?pass=p+w%20%26&", with_password("p+w &")),
        ("unix:///run/redis.sock?&p%61ss=p=w%2b%C3%A4", with_password("p=w+ä")),
    ];
    for (url, expected) in valid {
        assert_eq!(StoreUrl::parse(url).expect(url), expected, "{url}");
    }
}

#[test]
fn sentinel_and_cluster_urls_are_parsed() {
    let sentinels = |nodes| {
        url_with_servers(ServerAddresses::Sentinels { nodes, master: "mymaster".to_owned() })
    };
    let two = || vec![host_port("h1", 26379), host_port("h2", 5)];
    let full = StoreUrl {
        credentials: credentials("me", "pw"),
        sentinel_credentials: credentials("watch", "dog"),
        database: Some(4),
        namespace: namespace("shop"),
        tls: true,
        ..sentinels(two())
    };
    let cluster = || {
        url_with_servers(ServerAddresses::Cluster(vec![host_port("h1", 6379), host_port("::1", 7)]))
    };
    let valid = [
        ("redis+sentinel://h1,h2:5/mymaster", sentinels(two())),
        (
            "rediss+sentinel://me:pw@h1,h2:5/mymaster/4?ns=shop&sentinel_user=watch&sentinel_password=dog",
            full,
        ),
        (
            "redis+sentinel://:p+w@h1,h2:5/mymaster?sentinel_password=d+o+g%2B",
            StoreUrl {
                credentials: credentials("", "p+w"),
                sentinel_credentials: credentials("", "d+o+g+"),
                ..sentinels(two())
            },
        ),
        ("valkey+cluster://h1,[::1]:7", cluster()),
        (
            "redis+cluster://:pw@h1,[::1]:7/0?ns=b",
            StoreUrl { credentials: credentials("", "pw"), namespace: namespace("b"), ..cluster() },
        ),
    ];
    for (url, expected) in valid {
        assert_eq!(StoreUrl::parse(url).expect(url), expected, "{url}");
    }
}

#[test]
fn node_urls_are_parsed() {
    let (found, tls, login) =
        StoreUrl::parse_node("rediss://me:pw@h1", SENTINEL_PORT).expect("it is right");
    assert_eq!(
        (found, tls, login),
        (host_port("h1", SENTINEL_PORT), true, credentials("me", "pw"))
    );
    assert_eq!(
        StoreUrl::parse_node("redis://h1:7", SENTINEL_PORT).expect("it is right").0,
        host_port("h1", 7)
    );
    for url in ["redis://h1/2", "redis://h1?ns=a", "redis+sentinel://h1/m", "unix:///a", "h1:7"] {
        assert!(StoreUrl::parse_node(url, SENTINEL_PORT).is_err(), "{url}");
    }
}

/// Pairs of a URL and a part of its error message. `secret` marks text that must not be shown.
#[test]
fn invalid_urls_are_rejected_without_showing_secrets() {
    let invalid = [
        ("", "cannot be parsed"),
        ("127.0.0.1:6379", "cannot be parsed"),
        ("http://127.0.0.1", "unknown scheme"),
        ("rediss+unix:///secret", "unknown scheme"),
        ("redis+sentinels://secret/m", "unknown scheme"),
        ("redis://", "no valid host"),
        ("redis://0.0.0.0", "no valid host"),
        ("redis://[::]", "no valid host"),
        ("redis://::1", "no valid host"),
        ("redis://ho st", "no valid host"),
        ("redis://me:secret", "port"),
        ("redis://h:0", "port"),
        ("redis://h:70000", "port"),
        ("redis://h:", "port"),
        ("redis://me:sec/ret@h", "port"),
        ("redis://me:se#cret@h", "#fragment"),
        ("rediss://h/#insecure", "#fragment"),
        ("redis://me@h", "needs a password"),
        ("redis://me:%ff@h", "UTF-8"),
        ("redis://h/one", "database"),
        ("redis://h/-1", "database"),
        ("redis://h/+1", "database"),
        ("redis://h/1/2", "database"),
        ("redis://h/99999999999", "database"),
        ("redis://h?nss=secret", "parameter"),
        ("redis://h?ns=%ff", "UTF-8"),
        ("redis://h?sentinel_user=secret", "parameter"),
        ("redis://h1,h2", "several servers"),
        ("redis+sentinel://h1,h2", "master's name"),
        ("redis+sentinel://h1/?ns=a", "master's name"),
        ("redis+sentinel://h1,/m", "no valid host"),
        ("redis+sentinel://h1/m/x", "database"),
        ("redis+sentinel://h1/m?sentinel_user=secret", "needs a password"),
        ("redis+cluster://h1/1", "database 0 only"),
        ("unix://", "path"),
        ("unix:///", "path"),
        ("unix://run/secret", "path"),
        ("unix:///a?db=x", "database"),
    ];
    for (url, expected) in invalid {
        let error = StoreUrl::parse(url).err().unwrap_or_else(|| panic!("{url} was read"));
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains("secret"), "{url}: {text}");
    }
}

/// Any input is parsed as an address that can be reached, or refused without showing a
/// password.
#[test]
fn random_text_is_parsed_or_rejected_without_password() {
    const SECRET: &str = "hunter2hunter2";
    const SCHEMES: [&str; 6] =
        ["redis://", "rediss://", "redis+sentinel://", "redis+cluster://", "unix:///", ""];
    type UrlParts = (u8, String, String, String);
    bolero::check!().with_iterations(4_000).with_type::<UrlParts>().for_each(
        |(scheme, user, host, rest)| {
            let scheme = SCHEMES[usize::from(*scheme) % SCHEMES.len()];
            let texts = [
                format!("{scheme}{user}:{SECRET}@{host}/{rest}"),
                format!("{scheme}{user}:{SECRET}@127.0.0.1/{rest}"),
                format!("{scheme}{host}?pass={SECRET}&{rest}"),
                format!("{scheme}{rest}"),
            ];
            for text in texts {
                match StoreUrl::parse(&text) {
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Config);
                        let message = format!("{error} {error:?}");
                        assert!(!message.contains(SECRET), "{message}");
                    }
                    Ok(StoreUrl { servers: ServerAddresses::UnixSocket(path), .. }) => {
                        assert!(path.as_os_str().len() > 1);
                    }
                    Ok(StoreUrl { servers: ServerAddresses::Single(node), .. }) => {
                        assert!(has_host_and_port(&node), "{text}");
                    }
                    Ok(StoreUrl {
                        servers: ServerAddresses::Sentinels { nodes, .. } | ServerAddresses::Cluster(nodes),
                        ..
                    }) => assert!(!nodes.is_empty() && nodes.iter().all(has_host_and_port), "{text}"),
                }
            }
        },
    );
}

fn has_host_and_port(node: &HostPort) -> bool {
    !node.host.is_empty() && node.port > 0
}

#[test]
fn unknown_parameter_is_named_unless_it_may_be_a_password() {
    for (url, expected) in [
        ("redis://h?nss=a", "unknown parameter \"nss\"; it takes ns; "),
        ("redis://h?timeout=5", "unknown parameter \"timeout\"; "),
        ("redis+sentinel://h/m?user=a", "unknown parameter \"user\"; it takes ns, sentinel_user"),
        ("unix:///s?namespace=a", "unknown parameter \"namespace\"; it takes ns, db, user"),
        ("redis://:pa?secret@h", "unknown parameter; "),
        ("unix:///s?user=u&pass=a&secret", "unknown parameter; "),
        ("redis://h?Secret1", "unknown parameter; "),
    ] {
        let message = StoreUrl::parse(url).expect_err(url).to_string();
        assert!(message.contains(expected), "{url}: {message}");
    }
}
