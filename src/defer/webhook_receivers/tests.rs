use super::*;

const ROOM: WebhookLimits = WebhookLimits { max_calls: 8, contended: false };

fn hosts() -> Arc<WebhookReceivers> {
    Arc::default()
}

fn enter(hosts: &Arc<WebhookReceivers>, url: &str, room: WebhookLimits) -> Option<ReceiverSlot> {
    hosts.try_acquire_slot(&Key::custom(url), url, room)
}

/// A call to this host at this address, which is answered or not after so long.
async fn call(
    hosts: &Arc<WebhookReceivers>,
    url: &str,
    address: &str,
    takes: Duration,
    answered: bool,
) {
    let turn = enter(hosts, url, ROOM).expect("it has a turn");
    assert!(turn.try_claim_addresses(&[address.parse().expect("an address")]));
    tokio::time::advance(takes).await;
    turn.record_result(answered);
}

/// How many calls to these hosts and addresses begin at once.
fn at_once(
    hosts: &Arc<WebhookReceivers>,
    room: WebhookLimits,
    calls: &[(String, String)],
) -> usize {
    let turns: Vec<_> = calls
        .iter()
        .filter_map(|(url, address)| {
            let turn = enter(hosts, url, room)?;
            turn.try_claim_addresses(&[address.parse().expect("an address")]).then_some(turn)
        })
        .collect();
    turns.len()
}

fn many(url: impl Fn(usize) -> String, address: impl Fn(usize) -> String) -> Vec<(String, String)> {
    (0..40).map(|n| (url(n), address(n))).collect()
}

#[tokio::test(start_paused = true)]
async fn half_is_reserved_for_hosts_that_answered_in_time() {
    let hosts = hosts();
    let unknown = many(|n| format!("https://{n}.example/"), |n| format!("8.8.{n}.8:443"));
    assert_eq!(at_once(&hosts, ROOM, &unknown), 4);
    call(&hosts, "https://good.example/a", "9.9.9.9:443", Duration::ZERO, true).await;
    let turns: Vec<_> = unknown.iter().filter_map(|(url, _)| enter(&hosts, url, ROOM)).collect();
    assert_eq!(turns.len(), 4);
    // By host and port, whatever the path, and however it is written.
    assert!(enter(&hosts, "https://GOOD.example/b?c", ROOM).is_some());
    assert!(enter(&hosts, "https://good.example:8443/a", ROOM).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_silent_address_is_one_whatever_its_ports_and_names() {
    for (url, address) in [
        (many(|n| format!("http://1.2.3.4:{n}/"), |n| format!("1.2.3.4:{n}")), "1.2.3.4:9999"),
        (many(|n| format!("https://{n}.example/"), |_| "1.2.3.4:443".into()), "1.2.3.4:443"),
        (
            many(|n| format!("https://{n}.example/"), |n| format!("[2a00:1:2:3::{n}]:443")),
            "[2a00:1:2:3:4:5:6:7]:443",
        ),
        (
            many(|n| format!("https://{n}.example/"), |_| "[::ffff:1.2.3.4]:443".into()),
            "1.2.3.4:443",
        ),
    ] {
        let hosts = hosts();
        assert_eq!(at_once(&hosts, ROOM, &url), 4, "nothing is known of {address} yet");
        call(&hosts, "https://first.example", address, 3 * SLOW_THRESHOLD, false).await;
        assert_eq!(at_once(&hosts, ROOM, &url), 2, "{address}");
        // One at another address has a turn all the same.
        let turns: Vec<_> = url.iter().filter_map(|(url, _)| enter(&hosts, url, ROOM)).collect();
        drop(turns);
        call(&hosts, "https://other.example", "9.9.9.9:443", Duration::ZERO, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_host_may_have_more_while_nobody_waits() {
    let hosts = hosts();
    let url = "https://slow.example/";
    call(&hosts, url, "1.2.3.4:443", 2 * SLOW_THRESHOLD, true).await;
    let calls = vec![(url.to_owned(), "1.2.3.4:443".to_owned()); 8];
    assert_eq!(at_once(&hosts, ROOM, &calls), 4);
    assert_eq!(at_once(&hosts, WebhookLimits { contended: true, ..ROOM }, &calls), 2);
    call(&hosts, url, "1.2.3.4:443", Duration::ZERO, true).await;
    assert_eq!(at_once(&hosts, WebhookLimits { contended: true, ..ROOM }, &calls), 8);
}

/// Somebody else's hosts may stand behind the same front.
#[tokio::test(start_paused = true)]
async fn a_host_that_answered_keeps_half_where_its_address_is_silent() {
    let hosts = hosts();
    let (good, address) = ("https://good.example/", "1.2.3.4:443");
    call(&hosts, good, address, Duration::ZERO, true).await;
    call(&hosts, "https://silent.example/", address, 3 * SLOW_THRESHOLD, false).await;
    let silent = many(|n| format!("https://{n}.example/"), |_| address.into());
    let turns: Vec<_> = silent
        .iter()
        .filter_map(|(url, address)| {
            let turn = enter(&hosts, url, ROOM)?;
            turn.try_claim_addresses(&[address.parse().expect("an address")]).then_some(turn)
        })
        .collect();
    assert_eq!(turns.len(), 2);
    assert_eq!(at_once(&hosts, ROOM, &vec![(good.to_owned(), address.to_owned()); 8]), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_had_no_turn_is_remembered_until_it_has_one() {
    let hosts = hosts();
    let room = WebhookLimits { max_calls: 2, contended: true };
    let first = enter(&hosts, "https://a.example/", room).expect("nobody else is called");
    let key = Key::custom("b");
    assert!(hosts.availability(room).allows(&key), "its host is not known");
    assert!(hosts.try_acquire_slot(&key, "https://b.example/", room).is_none());
    let by_age = 60 * SLOW_THRESHOLD;
    assert_eq!(hosts.retry_delay(&key, by_age), NO_SLOT_RETRY_DELAY);
    assert_eq!(hosts.retry_delay(&Key::custom("c"), by_age), by_age);
    assert!(!hosts.availability(room).allows(&key));
    drop(first);
    assert!(hosts.availability(room).allows(&key));
    assert!(hosts.try_acquire_slot(&key, "https://b.example/", room).is_some());
    assert!(hosts.0.lock().rejected_hosts.is_empty());
}

/// Its host was never called, and is judged by the address that was learned when the call was refused.
#[tokio::test(start_paused = true)]
async fn a_call_refused_by_its_address_is_due_when_that_has_a_turn() {
    let (hosts, address) = (hosts(), "1.2.3.4:443");
    call(&hosts, "https://silent.example/", address, 3 * SLOW_THRESHOLD, false).await;
    let reaches =
        |turn: &ReceiverSlot| turn.try_claim_addresses(&[address.parse().expect("an address")]);
    let filling: Vec<_> = (0..2)
        .map(|n| {
            let turn = enter(&hosts, &format!("https://{n}.example/"), ROOM).expect("a turn");
            assert!(reaches(&turn));
            turn
        })
        .collect();
    let url = "https://late.example/";
    let turn = enter(&hosts, url, ROOM).expect("its address is not known");
    assert!(!reaches(&turn));
    drop(turn);
    let key = Key::custom(url);
    assert!(!hosts.availability(ROOM).allows(&key), "it would be claimed in vain");
    drop(filling);
    assert!(hosts.availability(ROOM).allows(&key));
    assert!(enter(&hosts, url, ROOM).is_some_and(|turn| reaches(&turn)));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_has_not_answered_is_given_more_time_with_each_attempt() {
    let hosts = hosts();
    let turn = enter(&hosts, "https://a.example/", ROOM).expect("it has a turn");
    assert_eq!(
        [0, 1, 2, 4].map(|n| turn.attempt_timeout(n)),
        [1, 1, 2, 4].map(|n| Some(FIRST_ATTEMPT_TIMEOUT * n))
    );
    turn.record_result(true);
    drop(turn);
    let turn = enter(&hosts, "https://a.example/", ROOM).expect("it has a turn");
    assert_eq!(turn.attempt_timeout(1), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_hosts_has_a_bound() {
    let hosts = hosts();
    for n in 0..2 * MAX_REMEMBERED {
        let (url, address) =
            (format!("https://{n}.example/"), format!("1.{}.{}.1:443", n / 256, n % 256));
        call(&hosts, &url, &address, Duration::from_millis(1), true).await;
        hosts.0.lock().record_rejected_host(&Key::custom(&url), &url.as_str().into());
    }
    let state = hosts.0.lock();
    assert!(state.receivers.len() <= MAX_REMEMBERED + 1, "{}", state.receivers.len());
    assert!(state.rejected_hosts.len() <= MAX_REMEMBERED && state.unproven_calls == 0);
    let last = ReceiverId::Host(format!("{}.example", 2 * MAX_REMEMBERED - 1).into());
    assert!(state.receivers.contains_key(&last), "the one that was called last");
}
