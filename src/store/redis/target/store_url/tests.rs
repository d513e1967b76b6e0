//! Valid and invalid URLs.

use super::*;
use crate::error::ErrorKind;

fn node(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

fn one(host: &str, port: u16) -> StoreUrl {
    of(ServerAddresses::Single(node(host, port)))
}

fn of(nodes: ServerAddresses) -> StoreUrl {
    let (login, sentinel_login) = (LoginCredentials::default(), LoginCredentials::default());
    StoreUrl {
        servers: nodes,
        tls: false,
        credentials: login,
        sentinel_credentials: sentinel_login,
        database: None,
        namespace: None,
    }
}

fn login(user: &str, password: &str) -> LoginCredentials {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    LoginCredentials { user: some(user), password: some(password) }
}

fn namespace(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn one_server() {
    let local = || one("127.0.0.1", 6379);
    let secure = |address| StoreUrl { tls: true, ..address };
    let good = [
        ("redis://127.0.0.1", local()),
        ("redis://127.0.0.1/", local()),
        ("REDIS://127.0.0.1:6379/?ns=shop", StoreUrl { namespace: namespace("shop"), ..local() }),
        ("valkey://cache.local:7000/3", StoreUrl { database: Some(3), ..one("cache.local", 7000) }),
        ("rediss://cache", secure(one("cache", 6379))),
        ("valkeys://[::1]:7001", secure(one("::1", 7001))),
        ("redis://[::1]", one("::1", 6379)),
        ("redis://:pw@127.0.0.1", StoreUrl { credentials: login("", "pw"), ..local() }),
        ("redis://me:p%40%2Fw@127.0.0.1", StoreUrl { credentials: login("me", "p@/w"), ..local() }),
        (
            "redis://me:p@w@127.0.0.1/0",
            StoreUrl { credentials: login("me", "p@w"), database: Some(0), ..local() },
        ),
    ];
    for (url, expected) in good {
        assert_eq!(StoreUrl::parse(url).expect(url), expected, "{url}");
    }
}

#[test]
fn sockets() {
    let socket = || of(ServerAddresses::UnixSocket("/run/redis.sock".into()));
    let full = StoreUrl { database: Some(2), credentials: login("me", "pw"), ..socket() };
    let with_password = |password| StoreUrl { credentials: login("", password), ..socket() };
    let good = [
        ("unix:///run/redis.sock", socket()),
        ("redis+unix:///run/redis.sock?ns=a", StoreUrl { namespace: namespace("a"), ..socket() }),
        ("valkey+unix:///run/redis.sock?db=2&user=me&pass=pw", full),
        ("unix:///run/redis.sock?pass=p+w%20%26&", with_password("p+w &")),
        ("unix:///run/redis.sock?&p%61ss=p=w%2b%C3%A4", with_password("p=w+ä")),
    ];
    for (url, expected) in good {
        assert_eq!(StoreUrl::parse(url).expect(url), expected, "{url}");
    }
}

#[test]
fn several_nodes() {
    let sentinels = |nodes| of(ServerAddresses::Sentinels { nodes, master: "mymaster".to_owned() });
    let two = || vec![node("h1", 26379), node("h2", 5)];
    let full = StoreUrl {
        credentials: login("me", "pw"),
        sentinel_credentials: login("watch", "dog"),
        database: Some(4),
        namespace: namespace("shop"),
        tls: true,
        ..sentinels(two())
    };
    let cluster = || of(ServerAddresses::Cluster(vec![node("h1", 6379), node("::1", 7)]));
    let good = [
        ("redis+sentinel://h1,h2:5/mymaster", sentinels(two())),
        (
            "rediss+sentinel://me:pw@h1,h2:5/mymaster/4?ns=shop&sentinel_user=watch&sentinel_password=dog",
            full,
        ),
        (
            "redis+sentinel://:p+w@h1,h2:5/mymaster?sentinel_password=d+o+g%2B",
            StoreUrl {
                credentials: login("", "p+w"),
                sentinel_credentials: login("", "d+o+g+"),
                ..sentinels(two())
            },
        ),
        ("valkey+cluster://h1,[::1]:7", cluster()),
        (
            "redis+cluster://:pw@h1,[::1]:7/0?ns=b",
            StoreUrl { credentials: login("", "pw"), namespace: namespace("b"), ..cluster() },
        ),
    ];
    for (url, expected) in good {
        assert_eq!(StoreUrl::parse(url).expect(url), expected, "{url}");
    }
}

#[test]
fn a_node_of_several() {
    let (found, tls, own) =
        StoreUrl::parse_node("rediss://me:pw@h1", SENTINEL_PORT).expect("it is right");
    assert_eq!((found, tls, own), (node("h1", SENTINEL_PORT), true, login("me", "pw")));
    assert_eq!(
        StoreUrl::parse_node("redis://h1:7", SENTINEL_PORT).expect("it is right").0,
        node("h1", 7)
    );
    for url in ["redis://h1/2", "redis://h1?ns=a", "redis+sentinel://h1/m", "unix:///a", "h1:7"] {
        assert!(StoreUrl::parse_node(url, SENTINEL_PORT).is_err(), "{url}");
    }
}

/// Each with a part of its message. `secret` stands for text that must not be in it.
#[test]
fn bad_ones() {
    let bad = [
        ("", "can't be read"),
        ("127.0.0.1:6379", "can't be read"),
        ("http://127.0.0.1", "no scheme"),
        ("rediss+unix:///secret", "no scheme"),
        ("redis+sentinels://secret/m", "no scheme"),
        ("redis://", "no host"),
        ("redis://0.0.0.0", "no host"),
        ("redis://[::]", "no host"),
        ("redis://::1", "no host"),
        ("redis://ho st", "no host"),
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
        ("redis+sentinel://h1,/m", "no host"),
        ("redis+sentinel://h1/m/x", "database"),
        ("redis+sentinel://h1/m?sentinel_user=secret", "needs a password"),
        ("redis+cluster://h1/1", "no database but 0"),
        ("unix://", "path"),
        ("unix:///", "path"),
        ("unix://run/secret", "path"),
        ("unix:///a?db=x", "database"),
    ];
    for (url, word) in bad {
        let error = StoreUrl::parse(url).err().unwrap_or_else(|| panic!("{url} was read"));
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        let text = error.to_string();
        assert!(text.contains(word) && !text.contains("secret"), "{url}: {text}");
    }
}

/// Any input is parsed as an address that can be reached, or refused without showing a
/// password.
#[test]
fn any_text_is_an_address_or_is_refused_without_its_password() {
    const SECRET: &str = "hunter2hunter2";
    const SCHEMES: [&str; 6] =
        ["redis://", "rediss://", "redis+sentinel://", "redis+cluster://", "unix:///", ""];
    type Input = (u8, String, String, String);
    bolero::check!().with_iterations(4_000).with_type::<Input>().for_each(
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
                        let told = format!("{error} {error:?}");
                        assert!(!told.contains(SECRET), "{told}");
                    }
                    Ok(StoreUrl { servers: ServerAddresses::UnixSocket(path), .. }) => {
                        assert!(path.as_os_str().len() > 1);
                    }
                    Ok(StoreUrl { servers: ServerAddresses::Single(node), .. }) => {
                        assert!(is_there(&node), "{text}");
                    }
                    Ok(StoreUrl {
                        servers: ServerAddresses::Sentinels { nodes, .. } | ServerAddresses::Cluster(nodes),
                        ..
                    }) => assert!(!nodes.is_empty() && nodes.iter().all(is_there), "{text}"),
                }
            }
        },
    );
}

fn is_there(node: &HostPort) -> bool {
    !node.host.is_empty() && node.port > 0
}
