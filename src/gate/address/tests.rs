//! Client addresses behind proxies, and forged headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::{
    client_address::{ClientAddress, ClientAddressError, MissingAddress},
    forwarded_node,
    network_set::NetworkSet,
};
use crate::{
    gate::{KeyError, KeySource, fake_request::FakeGateRequest},
    key::Key,
    lock::LockLayer,
};

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";
const PROXY: &str = "10.0.0.1";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn request_from(peer: &str, lines: &[(&'static str, &str)]) -> FakeGateRequest {
    let mut view = FakeGateRequest::new("GET");
    view.peer_addr = Some(SocketAddr::new(ip(peer), 4711));
    view.binary_headers =
        lines.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect();
    view
}

fn behind_test_proxies() -> ClientAddress {
    ClientAddress::behind_proxies(["10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.250"])
}

#[track_caller]
fn assert_client(address: &ClientAddress, view: &FakeGateRequest, found: &str) {
    assert_eq!(address.resolve(view), Ok(ip(found)), "{:?}", view.binary_headers);
}

#[test]
fn forwarded_for_yields_the_last_untrusted_address() {
    let list = |value| request_from(PROXY, &[(FORWARDED_FOR, value)]);
    assert_client(&behind_test_proxies(), &list("203.0.113.9"), "203.0.113.9");
    assert_client(
        &behind_test_proxies(),
        &list("1.1.1.1, 203.0.113.9,10.0.0.7 , 192.0.2.250"),
        "203.0.113.9",
    );
    assert_client(
        &behind_test_proxies(),
        &list("garbage, 203.0.113.9:80, 10.0.0.7"),
        "203.0.113.9",
    );
    assert_client(&behind_test_proxies(), &list("203.0.113.9, , ,"), "203.0.113.9");
    assert_client(&behind_test_proxies(), &list("10.0.0.9, 10.0.0.7"), "10.0.0.9");
    let lines = [
        (FORWARDED_FOR, "1.1.1.1"),
        (FORWARDED_FOR, "203.0.113.9"),
        (FORWARDED_FOR, "10.0.0.7, 10.0.0.8"),
    ];
    assert_client(&behind_test_proxies(), &request_from(PROXY, &lines), "203.0.113.9");
}

#[test]
fn headers_of_an_untrusted_peer_are_ignored() {
    let lines = [(FORWARDED_FOR, "203.0.113.9"), (FORWARDED, "for=203.0.113.9")];
    for address in
        [behind_test_proxies(), behind_test_proxies().forwarded_header(), ClientAddress::peer()]
    {
        assert_client(&address, &request_from("192.0.2.9", &lines), "192.0.2.9");
    }
    assert_client(&ClientAddress::peer(), &request_from(PROXY, &lines), PROXY);
    // The proxy's address in IPv4-mapped form, as a dual-stack listener reports it.
    assert_client(&behind_test_proxies(), &request_from("::ffff:10.0.0.1", &lines), "203.0.113.9");
}

#[test]
fn forwarded_is_parsed_by_rfc_7239() {
    let address = behind_test_proxies().forwarded_header();
    for (value, found) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=\"203.0.113.9:4711\"", "203.0.113.9"),
        ("for=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
        ("by=10.0.0.1;for=203.0.113.9;proto=https", "203.0.113.9"),
        ("proto=https; host=\"a, for=1.1.1.1; \\\"b\\\"\"; for=203.0.113.9", "203.0.113.9"),
        ("ext=\"a, for=1.1.1.1\\\"\";for=203.0.113.9", "203.0.113.9"),
        ("ext=\"a\\\", for=1.1.1.1\"; for=203.0.113.9", "203.0.113.9"),
        ("for=1.1.1.1, for=203.0.113.9;by=_x, for=10.0.0.7", "203.0.113.9"),
        ("for=\"1.1.1.1, for=203.0.113.9, for=\"10.0.0.7\"", "203.0.113.9"),
        ("for=203.0.113.9:_port", "203.0.113.9"),
    ] {
        assert_client(&address, &request_from(PROXY, &[(FORWARDED, value)]), found);
    }
    for value in [
        "for=unknown",
        "for=_hidden",
        "for=203.0.113.9, for=unknown",
        "for=203.0.113.9;for=203.0.113.9",
        "proto=https",
        "203.0.113.9",
        "for=",
        "for=\"203.0.113.9",
        "for=203.0.113.9 by=x",
        "=;for=203.0.113.9",
        "\"x\"=y;for=203.0.113.9",
    ] {
        let view = request_from(PROXY, &[(FORWARDED, value)]);
        assert_eq!(address.resolve(&view), Err(ClientAddressError::Malformed), "{value}");
    }
}

#[test]
fn hops_are_counted_from_the_right() {
    let view = request_from(
        "198.51.100.1",
        &[(FORWARDED_FOR, "1.1.1.1, 203.0.113.9, unknown, 192.0.2.3")],
    );
    assert_client(&ClientAddress::behind_hops(1), &view, "192.0.2.3");
    assert_client(&ClientAddress::behind_hops(3), &view, "203.0.113.9");
    for (hops, unknown) in [(2, ClientAddressError::Malformed), (5, ClientAddressError::Missing)] {
        assert_eq!(ClientAddress::behind_hops(hops).resolve(&view), Err(unknown));
    }
    // A socket without an address, such as a Unix socket, belongs to a local proxy.
    let mut local = view;
    local.peer_addr = None;
    assert_client(&ClientAddress::behind_hops(1), &local, "192.0.2.3");
    assert_eq!(behind_test_proxies().resolve(&local), Err(ClientAddressError::NoPeer));
}

#[test]
fn parsed_addresses_and_bytes_are_bounded() {
    let proxies = |n: usize| vec!["10.0.0.7"; n].join(",");
    let line = |value: String| request_from(PROXY, &[(FORWARDED_FOR, &value)]);
    assert_client(
        &behind_test_proxies(),
        &line(format!("203.0.113.9,{}", proxies(31))),
        "203.0.113.9",
    );
    let too_many = line(format!("203.0.113.9,{}", proxies(32)));
    assert_eq!(behind_test_proxies().resolve(&too_many), Err(ClientAddressError::Malformed));
    let long = line(format!("{}203.0.113.9", " ".repeat(5_000)));
    assert_eq!(behind_test_proxies().resolve(&long), Err(ClientAddressError::Malformed));
    assert_client(
        &behind_test_proxies(),
        &line(format!("{},203.0.113.9", "x".repeat(100_000))),
        "203.0.113.9",
    );
    let empty = line(",".repeat(100_000));
    assert_eq!(behind_test_proxies().resolve(&empty), Err(ClientAddressError::Malformed));
}

#[test]
fn missing_address_follows_the_setting() {
    let silent = request_from(PROXY, &[]);
    let without_peer = FakeGateRequest::new("GET");
    let unresolved = KeyError::BadRequest("The client's address can't be told");
    assert_eq!(behind_test_proxies().key(&silent), Err(unresolved));
    assert!(matches!(behind_test_proxies().key(&without_peer), Err(KeyError::Misconfigured(_))));
    for view in [&silent, &without_peer] {
        assert_eq!(
            behind_test_proxies().on_missing(MissingAddress::Skip).key(view),
            Err(KeyError::Exempt)
        );
        let shared =
            behind_test_proxies().on_missing(MissingAddress::Shared).key(view).expect("a key");
        assert_eq!(shared.as_str(), "a:::none");
    }
}

#[test]
fn ipv6_prefix_lengths_give_distinct_keys() {
    let view = request_from(PROXY, &[(FORWARDED_FOR, "2001:db8:1:2ff:3:4:5:6")]);
    let key = |bits| behind_test_proxies().ipv6_prefix(bits).key(&view).expect("a key").to_string();
    assert_eq!(key(64), "a:::2001-db8-1-2ff");
    assert_eq!(key(64), Key::ip(ip("2001:db8:1:2ff::")).as_str());
    assert_eq!(key(56), "a:::2001-db8-1-200-0-0-0-0_56");
    assert_eq!(key(32), "a:::2001-db8-0-0-0-0-0-0_32");
    assert_eq!(key(128), "a:::2001-db8-1-2ff-3-4-5-6_128");
    let v4 = request_from(PROXY, &[(FORWARDED_FOR, "203.0.113.9")]);
    assert_eq!(
        behind_test_proxies().ipv6_prefix(32).key(&v4).expect("a key").as_str(),
        "a:::203.0.113.9"
    );
}

#[test]
fn network_set_contains_exactly_its_networks() {
    let networks = NetworkSet::parse("test", ["10.0.0.0/8", "10.1.0.0/16", "::ffff:192.0.2.0/120"])
        .union(NetworkSet::parse("test", ["9.0.0.0/8", "2001:db8::/32", "::/80", "10.255.0.0/15"]));
    for inside in
        ["9.0.0.0", "10.255.255.255", "::ffff:10.2.0.1", "192.0.2.7", "2001:db8::1", "::7"]
    {
        assert!(networks.contains(ip(inside)), "{inside}");
    }
    for outside in ["8.255.255.255", "11.0.0.0", "192.0.3.0", "2001:db9::", "::ffff:1.1.1.1"] {
        assert!(!networks.contains(ip(outside)), "{outside}");
    }
    assert!(!NetworkSet::default().contains(ip("::")));
}

#[test]
#[should_panic(expected = "`10.0.0.0/33` is neither an address")]
fn invalid_network_is_refused() {
    let _ = ClientAddress::behind_proxies(["10.0.0.0/33"]);
}

/// The prefix covers all IPv4 addresses, so every peer would count as a proxy.
#[test]
#[should_panic(expected = "`64:ff9b::/96` contains all of IPv4")]
fn nat64_prefix_is_refused() {
    let _ = ClientAddress::behind_proxies(["64:ff9b::/96"]);
}

#[test]
#[should_panic(expected = "name at least one network")]
fn empty_proxy_list_is_refused() {
    let _ = ClientAddress::behind_proxies::<&str>([]);
}

#[test]
#[should_panic(expected = "would pass without the lock")]
fn lock_keyed_by_a_skippable_address_is_refused() {
    let client = KeySource::<()>::client(behind_test_proxies().on_missing(MissingAddress::Skip));
    let _ = LockLayer::by(KeySource::header("x-tenant").and(client));
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).to_canonical()),
        // Trusted addresses.
        any::<u16>().prop_map(|bits| Ipv4Addr::from(0x0a00_0000 | u32::from(bits)).into()),
        any::<u16>().prop_map(|n| Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, n).into()),
    ]
}

/// Spellings of an address that proxies use.
fn address_spellings(address: IpAddr) -> Vec<String> {
    let bare = match address {
        IpAddr::V4(v4) => {
            let mapped = v4.to_ipv6_mapped();
            return vec![
                v4.to_string(),
                format!(" {v4}:65535 "),
                mapped.to_string(),
                format!("[{mapped}]:1"),
            ];
        }
        IpAddr::V6(v6) => v6,
    };
    let long: Vec<_> = bare.segments().iter().map(|part| format!("{part:04X}")).collect();
    let long = long.join(":");
    vec![bare.to_string(), format!("[{bare}]"), format!("{long}%eth0"), format!("\t[{long}%1]:80")]
}

/// Chain of addresses, each with the index of its spelling.
fn proxy_chain() -> impl Strategy<Value = Vec<(usize, IpAddr)>> {
    prop::collection::vec((0..4usize, any_ip()), 1..8)
}

fn format_chain(chain: &[(usize, IpAddr)], element: impl Fn(String) -> String) -> String {
    let elements = chain
        .iter()
        .map(|(spelling, address)| element(address_spellings(*address)[*spelling].clone()));
    elements.collect::<Vec<_>>().join(",")
}

/// Model of the rule: the last untrusted address, or else the first address.
fn expected_client(chain: &[(usize, IpAddr)]) -> IpAddr {
    let trusted = NetworkSet::parse("model", ["10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.250"]);
    let last_untrusted = chain.iter().rposition(|(_, address)| !trusted.contains(*address));
    chain[last_untrusted.unwrap_or(0)].1
}

/// Header value of a client, with many quotes and commas.
fn arbitrary_header_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        prop::string::bytes_regex("[\"\\\\,;= for\\[\\]:.0-9_]{0,60}").expect("a pattern"),
    ]
}

proptest! {
    #[test]
    fn resolve_never_panics(lines in prop::collection::vec(arbitrary_header_value(), 0..4), hops in 1..33usize) {
        let mut view = request_from(PROXY, &[]);
        view.binary_headers = lines.iter().flat_map(|l| [(FORWARDED_FOR, l.clone()), (FORWARDED, l.clone())]).collect();
        for address in [behind_test_proxies(), ClientAddress::behind_hops(hops)] {
            let _ = address.clone().resolve(&view);
            let _ = address.forwarded_header().resolve(&view);
        }
    }

    #[test]
    fn every_spelling_of_an_address_parses_alike(address in any_ip()) {
        for text in address_spellings(address) {
            prop_assert_eq!(forwarded_node::parse_address(&text), Some(address), "{}", text);
            let quoted = format!("for=\"{}\"", text.trim());
            prop_assert_eq!(forwarded_node::parse_forwarded_for(&quoted), Some(address), "{}", quoted);
        }
    }

    #[test]
    fn resolve_matches_the_model(chain in proxy_chain()) {
        let (list, quoted) = (format_chain(&chain, |a| a), format_chain(&chain, |a| format!("for=\"{}\"", a.trim())));
        let expected = Ok(expected_client(&chain));
        prop_assert_eq!(behind_test_proxies().resolve(&request_from(PROXY, &[(FORWARDED_FOR, &list)])), expected);
        prop_assert_eq!(behind_test_proxies().forwarded_header().resolve(&request_from(PROXY, &[(FORWARDED, &quoted)])), expected);
    }

    /// The headers of a client precede those of the proxies, in the same line or in earlier lines,
    /// and do not change the result.
    #[test]
    fn client_headers_do_not_change_the_result(
        junk in arbitrary_header_value(),
        before in prop::collection::vec(arbitrary_header_value(), 0..4),
        client in any::<u16>(),
        proxies in prop::collection::vec(any::<u16>(), 0..4),
        same_line in any::<bool>(),
    ) {
        let client = IpAddr::from(Ipv4Addr::from(0xc633_0000 | u32::from(client)));
        let proxy = |n: u16| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | u32::from(n)));
        let chain: Vec<_> = std::iter::once(client).chain(proxies.into_iter().map(proxy)).collect();
        let chain: Vec<_> = chain.into_iter().map(|address| (1, address)).collect();
        let appended = [
            (FORWARDED_FOR, format_chain(&chain, |a| a)),
            (FORWARDED, format_chain(&chain, |a| format!("for=\"{}\";by=\"_x\"", a.trim()))),
        ];
        let mut view = request_from(PROXY, &[]);
        for (name, appended) in appended {
            view.binary_headers.extend(before.iter().map(|line| (name, line.clone())));
            if same_line {
                view.binary_headers.push((name, [&junk, &b","[..], appended.as_bytes()].concat()));
            } else {
                view.binary_headers.push((name, appended.into_bytes()));
            }
        }
        for address in [behind_test_proxies(), ClientAddress::behind_hops(chain.len())] {
            prop_assert_eq!(address.clone().resolve(&view), Ok(client));
            prop_assert_eq!(address.forwarded_header().resolve(&view), Ok(client));
        }
    }
}
