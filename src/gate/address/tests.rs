//! Whom a request is said to come from, and whom nobody can make it come from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::{
    client_address::{ClientAddress, ClientAddressError, MissingAddress},
    forwarded_node,
    network_set::NetworkSet,
};
use crate::{
    gate::{KeyError, KeySource, fake::FakeView},
    key::Key,
    lock::LockGate,
};

const LIST: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";
const PROXY: &str = "10.0.0.1";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn from(peer: &str, lines: &[(&'static str, &str)]) -> FakeView {
    let mut view = FakeView::new("GET");
    view.peer = Some(SocketAddr::new(ip(peer), 4711));
    view.lines = lines.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect();
    view
}

fn behind() -> ClientAddress {
    ClientAddress::behind_proxies(["10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.250"])
}

#[track_caller]
fn finds(address: &ClientAddress, view: &FakeView, found: &str) {
    assert_eq!(address.resolve(view), Ok(ip(found)), "{:?}", view.lines);
}

#[test]
fn a_list_is_read_from_the_right_to_the_first_stranger() {
    let list = |value| from(PROXY, &[(LIST, value)]);
    finds(&behind(), &list("203.0.113.9"), "203.0.113.9");
    finds(&behind(), &list("1.1.1.1, 203.0.113.9,10.0.0.7 , 192.0.2.250"), "203.0.113.9");
    finds(&behind(), &list("garbage, 203.0.113.9:80, 10.0.0.7"), "203.0.113.9");
    finds(&behind(), &list("203.0.113.9, , ,"), "203.0.113.9");
    finds(&behind(), &list("10.0.0.9, 10.0.0.7"), "10.0.0.9");
    let lines = [(LIST, "1.1.1.1"), (LIST, "203.0.113.9"), (LIST, "10.0.0.7, 10.0.0.8")];
    finds(&behind(), &from(PROXY, &lines), "203.0.113.9");
}

#[test]
fn who_is_no_proxy_is_believed_nothing() {
    let lines = [(LIST, "203.0.113.9"), (FORWARDED, "for=203.0.113.9")];
    for address in [behind(), behind().forwarded_header(), ClientAddress::peer()] {
        finds(&address, &from("192.0.2.9", &lines), "192.0.2.9");
    }
    finds(&ClientAddress::peer(), &from(PROXY, &lines), PROXY);
    // The proxy's own address, as a server shows it that listens on both.
    finds(&behind(), &from("::ffff:10.0.0.1", &lines), "203.0.113.9");
}

#[test]
fn forwarded_is_read_as_rfc_7239_has_it() {
    let address = behind().forwarded_header();
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
        finds(&address, &from(PROXY, &[(FORWARDED, value)]), found);
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
        let view = from(PROXY, &[(FORWARDED, value)]);
        assert_eq!(address.resolve(&view), Err(ClientAddressError::Malformed), "{value}");
    }
}

#[test]
fn hops_are_counted() {
    let view = from("198.51.100.1", &[(LIST, "1.1.1.1, 203.0.113.9, unknown, 192.0.2.3")]);
    finds(&ClientAddress::behind_hops(1), &view, "192.0.2.3");
    finds(&ClientAddress::behind_hops(3), &view, "203.0.113.9");
    for (hops, unknown) in [(2, ClientAddressError::Malformed), (5, ClientAddressError::Missing)] {
        assert_eq!(ClientAddress::behind_hops(hops).resolve(&view), Err(unknown));
    }
    // A socket of no address is a proxy on the same machine.
    let mut local = view;
    local.peer = None;
    finds(&ClientAddress::behind_hops(1), &local, "192.0.2.3");
    assert_eq!(behind().resolve(&local), Err(ClientAddressError::NoPeer));
}

#[test]
fn no_more_is_looked_at_than_is_worth_it() {
    let proxies = |n: usize| vec!["10.0.0.7"; n].join(",");
    let line = |value: String| from(PROXY, &[(LIST, &value)]);
    finds(&behind(), &line(format!("203.0.113.9,{}", proxies(31))), "203.0.113.9");
    let far = line(format!("203.0.113.9,{}", proxies(32)));
    assert_eq!(behind().resolve(&far), Err(ClientAddressError::Malformed));
    let long = line(format!("{}203.0.113.9", " ".repeat(5_000)));
    assert_eq!(behind().resolve(&long), Err(ClientAddressError::Malformed));
    finds(&behind(), &line(format!("{},203.0.113.9", "x".repeat(100_000))), "203.0.113.9");
    let empty = line(",".repeat(100_000));
    assert_eq!(behind().resolve(&empty), Err(ClientAddressError::Malformed));
}

#[test]
fn whom_nobody_tells_is_decided_by_the_type() {
    let silent = from(PROXY, &[]);
    let nobody = FakeView::new("GET");
    let untold = KeyError::BadRequest("The client's address can't be told");
    assert_eq!(behind().key(&silent), Err(untold));
    assert!(matches!(behind().key(&nobody), Err(KeyError::Misconfigured(_))));
    for view in [&silent, &nobody] {
        assert_eq!(behind().on_missing(MissingAddress::Skip).key(view), Err(KeyError::Exempt));
        let shared = behind().on_missing(MissingAddress::Shared).key(view).expect("a key");
        assert_eq!(shared.as_str(), "a:::none");
    }
}

#[test]
fn networks_of_each_size_are_keys_of_their_own() {
    let view = from(PROXY, &[(LIST, "2001:db8:1:2ff:3:4:5:6")]);
    let key = |bits| behind().ipv6_prefix(bits).key(&view).expect("a key").to_string();
    assert_eq!(key(64), "a:::2001-db8-1-2ff");
    assert_eq!(key(64), Key::ip(ip("2001:db8:1:2ff::")).as_str());
    assert_eq!(key(56), "a:::2001-db8-1-200-0-0-0-0_56");
    assert_eq!(key(32), "a:::2001-db8-0-0-0-0-0-0_32");
    assert_eq!(key(128), "a:::2001-db8-1-2ff-3-4-5-6_128");
    let v4 = from(PROXY, &[(LIST, "203.0.113.9")]);
    assert_eq!(behind().ipv6_prefix(32).key(&v4).expect("a key").as_str(), "a:::203.0.113.9");
}

#[test]
fn networks_hold_what_they_say() {
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
#[should_panic(expected = "`10.0.0.0/33` is no address")]
fn a_network_that_is_none_is_refused() {
    let _ = ClientAddress::behind_proxies(["10.0.0.0/33"]);
}

/// It would be every proxy that has an IPv4 address.
#[test]
#[should_panic(expected = "`64:ff9b::/96` is all of IPv4")]
fn the_prefix_of_nat64_is_no_network() {
    let _ = ClientAddress::behind_proxies(["64:ff9b::/96"]);
}

#[test]
#[should_panic(expected = "name one network at least")]
fn proxies_must_be_named() {
    let _ = ClientAddress::behind_proxies::<&str>([]);
}

#[test]
#[should_panic(expected = "would pass without the lock")]
fn a_lock_is_no_matter_of_whether_an_address_is_told() {
    let client = KeySource::<()>::client(behind().on_missing(MissingAddress::Skip));
    let _ = LockGate::new(KeySource::header("x-tenant").and(client));
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).to_canonical()),
        // Trusted ones.
        any::<u16>().prop_map(|bits| Ipv4Addr::from(0x0a00_0000 | u32::from(bits)).into()),
        any::<u16>().prop_map(|n| Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, n).into()),
    ]
}

/// The ways to write an address that proxies have.
fn spellings(address: IpAddr) -> Vec<String> {
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

/// As a line of proxies: which of the address's spellings, and the address.
fn chain() -> impl Strategy<Value = Vec<(usize, IpAddr)>> {
    prop::collection::vec((0..4usize, any_ip()), 1..8)
}

fn written(chain: &[(usize, IpAddr)], element: impl Fn(String) -> String) -> String {
    let elements = chain.iter().map(|(way, address)| element(spellings(*address)[*way].clone()));
    elements.collect::<Vec<_>>().join(",")
}

/// The rule, said the other way round.
fn model(chain: &[(usize, IpAddr)]) -> IpAddr {
    let trusted = NetworkSet::parse("model", ["10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.250"]);
    let strangers = chain.iter().rposition(|(_, address)| !trusted.contains(*address));
    chain[strangers.unwrap_or(0)].1
}

/// What a client may write, quotes and commas above all.
fn junk() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        prop::string::bytes_regex("[\"\\\\,;= for\\[\\]:.0-9_]{0,60}").expect("a pattern"),
    ]
}

proptest! {
    #[test]
    fn nothing_panics(lines in prop::collection::vec(junk(), 0..4), hops in 1..33usize) {
        let mut view = from(PROXY, &[]);
        view.lines = lines.iter().flat_map(|l| [(LIST, l.clone()), (FORWARDED, l.clone())]).collect();
        for address in [behind(), ClientAddress::behind_hops(hops)] {
            let _ = address.clone().resolve(&view);
            let _ = address.forwarded_header().resolve(&view);
        }
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written(address in any_ip()) {
        for text in spellings(address) {
            prop_assert_eq!(forwarded_node::parse_address(&text), Some(address), "{}", text);
            let quoted = format!("for=\"{}\"", text.trim());
            prop_assert_eq!(forwarded_node::parse_forwarded_for(&quoted), Some(address), "{}", quoted);
        }
    }

    #[test]
    fn the_walk_does_as_its_rule_says(chain in chain()) {
        let (list, quoted) = (written(&chain, |a| a), written(&chain, |a| format!("for=\"{}\"", a.trim())));
        let expected = Ok(model(&chain));
        prop_assert_eq!(behind().resolve(&from(PROXY, &[(LIST, &list)])), expected);
        prop_assert_eq!(behind().forwarded_header().resolve(&from(PROXY, &[(FORWARDED, &quoted)])), expected);
    }

    /// What a client has sent stands left of what the proxies have appended, in the same line or in some
    /// before: whatever it is, it changes nothing.
    #[test]
    fn what_a_client_sends_changes_nothing(
        junk in junk(),
        before in prop::collection::vec(junk(), 0..4),
        stranger in any::<u16>(),
        proxies in prop::collection::vec(any::<u16>(), 0..4),
        same_line in any::<bool>(),
    ) {
        let stranger = IpAddr::from(Ipv4Addr::from(0xc633_0000 | u32::from(stranger)));
        let proxy = |n: u16| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | u32::from(n)));
        let chain: Vec<_> = std::iter::once(stranger).chain(proxies.into_iter().map(proxy)).collect();
        let chain: Vec<_> = chain.into_iter().map(|address| (1, address)).collect();
        let own = [
            (LIST, written(&chain, |a| a)),
            (FORWARDED, written(&chain, |a| format!("for=\"{}\";by=\"_x\"", a.trim()))),
        ];
        let mut view = from(PROXY, &[]);
        for (name, own) in own {
            view.lines.extend(before.iter().map(|line| (name, line.clone())));
            if same_line {
                view.lines.push((name, [&junk, &b","[..], own.as_bytes()].concat()));
            } else {
                view.lines.push((name, own.into_bytes()));
            }
        }
        for address in [behind(), ClientAddress::behind_hops(chain.len())] {
            prop_assert_eq!(address.clone().resolve(&view), Ok(stranger));
            prop_assert_eq!(address.forwarded_header().resolve(&view), Ok(stranger));
        }
    }
}
