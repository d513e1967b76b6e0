use super::*;

const DEFAULT_LIMITS: WebhookLimits = WebhookLimits { max_calls: 8, contended: false };

fn new_receivers() -> Arc<WebhookReceivers> {
    Arc::default()
}

fn try_slot(hosts: &Arc<WebhookReceivers>, url: &str, room: WebhookLimits) -> Option<ReceiverSlot> {
    hosts.try_acquire_slot(&Key::custom(url), url, room)
}

/// A call to this host at this address, which is answered or not after so long.
async fn complete_call(
    hosts: &Arc<WebhookReceivers>,
    url: &str,
    address: &str,
    takes: Duration,
    answered: bool,
) {
    let turn = try_slot(hosts, url, DEFAULT_LIMITS).expect("it has a turn");
    assert!(turn.try_claim_addresses(&[address.parse().expect("an address")]));
    tokio::time::advance(takes).await;
    turn.record_result(answered);
}

/// How many calls to these hosts and addresses begin at once.
fn count_concurrent_calls(
    hosts: &Arc<WebhookReceivers>,
    room: WebhookLimits,
    calls: &[(String, String)],
) -> usize {
    let turns: Vec<_> = calls
        .iter()
        .filter_map(|(url, address)| {
            let turn = try_slot(hosts, url, room)?;
            turn.try_claim_addresses(&[address.parse().expect("an address")]).then_some(turn)
        })
        .collect();
    turns.len()
}

fn forty_calls(
    url: impl Fn(usize) -> String,
    address: impl Fn(usize) -> String,
) -> Vec<(String, String)> {
    (0..40).map(|n| (url(n), address(n))).collect()
}

#[tokio::test(start_paused = true)]
async fn half_of_the_slots_is_reserved_for_proven_hosts() {
    let hosts = new_receivers();
    let unknown = forty_calls(|n| format!("https://{n}.example/"), |n| format!("8.8.{n}.8:443"));
    assert_eq!(count_concurrent_calls(&hosts, DEFAULT_LIMITS, &unknown), 4);
    complete_call(&hosts, "https://good.example/a", "9.9.9.9:443", Duration::ZERO, true).await;
    let turns: Vec<_> =
        unknown.iter().filter_map(|(url, _)| try_slot(&hosts, url, DEFAULT_LIMITS)).collect();
    assert_eq!(turns.len(), 4);
    // By host and port, whatever the path, and however it is written.
    assert!(try_slot(&hosts, "https://GOOD.example/b?c", DEFAULT_LIMITS).is_some());
    assert!(try_slot(&hosts, "https://good.example:8443/a", DEFAULT_LIMITS).is_none());
}

#[tokio::test(start_paused = true)]
async fn silent_address_counts_once_across_ports_and_hosts() {
    for (url, address) in [
        (
            forty_calls(|n| format!("http://1.2.3.4:{n}/"), |n| format!("1.2.3.4:{n}")),
            "1.2.3.4:9999",
        ),
        (forty_calls(|n| format!("https://{n}.example/"), |_| "1.2.3.4:443".into()), "1.2.3.4:443"),
        (
            forty_calls(|n| format!("https://{n}.example/"), |n| format!("[2a00:1:2:3::{n}]:443")),
            "[2a00:1:2:3:4:5:6:7]:443",
        ),
        (
            forty_calls(|n| format!("https://{n}.example/"), |_| "[::ffff:1.2.3.4]:443".into()),
            "1.2.3.4:443",
        ),
    ] {
        let hosts = new_receivers();
        assert_eq!(
            count_concurrent_calls(&hosts, DEFAULT_LIMITS, &url),
            4,
            "nothing is known of {address} yet"
        );
        complete_call(&hosts, "https://first.example", address, 3 * SLOW_THRESHOLD, false).await;
        assert_eq!(count_concurrent_calls(&hosts, DEFAULT_LIMITS, &url), 2, "{address}");
        // One at another address has a turn all the same.
        let turns: Vec<_> =
            url.iter().filter_map(|(url, _)| try_slot(&hosts, url, DEFAULT_LIMITS)).collect();
        drop(turns);
        complete_call(&hosts, "https://other.example", "9.9.9.9:443", Duration::ZERO, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_host_gets_more_slots_without_contention() {
    let hosts = new_receivers();
    let url = "https://slow.example/";
    complete_call(&hosts, url, "1.2.3.4:443", 2 * SLOW_THRESHOLD, true).await;
    let calls = vec![(url.to_owned(), "1.2.3.4:443".to_owned()); 8];
    assert_eq!(count_concurrent_calls(&hosts, DEFAULT_LIMITS, &calls), 4);
    assert_eq!(
        count_concurrent_calls(&hosts, WebhookLimits { contended: true, ..DEFAULT_LIMITS }, &calls),
        2
    );
    complete_call(&hosts, url, "1.2.3.4:443", Duration::ZERO, true).await;
    assert_eq!(
        count_concurrent_calls(&hosts, WebhookLimits { contended: true, ..DEFAULT_LIMITS }, &calls),
        8
    );
}

/// Somebody else's hosts may stand behind the same front.
#[tokio::test(start_paused = true)]
async fn proven_host_keeps_half_of_a_silent_address() {
    let hosts = new_receivers();
    let (good, address) = ("https://good.example/", "1.2.3.4:443");
    complete_call(&hosts, good, address, Duration::ZERO, true).await;
    complete_call(&hosts, "https://silent.example/", address, 3 * SLOW_THRESHOLD, false).await;
    let silent = forty_calls(|n| format!("https://{n}.example/"), |_| address.into());
    let turns: Vec<_> = silent
        .iter()
        .filter_map(|(url, address)| {
            let turn = try_slot(&hosts, url, DEFAULT_LIMITS)?;
            turn.try_claim_addresses(&[address.parse().expect("an address")]).then_some(turn)
        })
        .collect();
    assert_eq!(turns.len(), 2);
    assert_eq!(
        count_concurrent_calls(
            &hosts,
            DEFAULT_LIMITS,
            &vec![(good.to_owned(), address.to_owned()); 8]
        ),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn rejected_call_is_remembered_until_it_gets_a_slot() {
    let hosts = new_receivers();
    let room = WebhookLimits { max_calls: 2, contended: true };
    let first = try_slot(&hosts, "https://a.example/", room).expect("nobody else is called");
    let key = Key::custom("b");
    assert!(hosts.free_slots(room).allows(&key), "its host is not known");
    assert!(hosts.try_acquire_slot(&key, "https://b.example/", room).is_none());
    let by_age = 60 * SLOW_THRESHOLD;
    assert_eq!(hosts.retry_delay(&key, by_age), NO_SLOT_RETRY_DELAY);
    assert_eq!(hosts.retry_delay(&Key::custom("c"), by_age), by_age);
    assert!(!hosts.free_slots(room).allows(&key));
    drop(first);
    assert!(hosts.free_slots(room).allows(&key));
    assert!(hosts.try_acquire_slot(&key, "https://b.example/", room).is_some());
    assert!(hosts.0.lock().rejected_hosts.is_empty());
}

/// Its host was never called, and is judged by the address that was learned when the call was refused.
#[tokio::test(start_paused = true)]
async fn call_rejected_by_address_is_due_when_a_slot_frees() {
    let (hosts, address) = (new_receivers(), "1.2.3.4:443");
    complete_call(&hosts, "https://silent.example/", address, 3 * SLOW_THRESHOLD, false).await;
    let reaches =
        |turn: &ReceiverSlot| turn.try_claim_addresses(&[address.parse().expect("an address")]);
    let filling: Vec<_> = (0..2)
        .map(|n| {
            let turn =
                try_slot(&hosts, &format!("https://{n}.example/"), DEFAULT_LIMITS).expect("a turn");
            assert!(reaches(&turn));
            turn
        })
        .collect();
    let url = "https://late.example/";
    let turn = try_slot(&hosts, url, DEFAULT_LIMITS).expect("its address is not known");
    assert!(!reaches(&turn));
    drop(turn);
    let key = Key::custom(url);
    assert!(!hosts.free_slots(DEFAULT_LIMITS).allows(&key), "it would be claimed in vain");
    drop(filling);
    assert!(hosts.free_slots(DEFAULT_LIMITS).allows(&key));
    assert!(try_slot(&hosts, url, DEFAULT_LIMITS).is_some_and(|turn| reaches(&turn)));
}

#[tokio::test(start_paused = true)]
async fn unproven_host_gets_more_time_with_each_attempt() {
    let hosts = new_receivers();
    let turn = try_slot(&hosts, "https://a.example/", DEFAULT_LIMITS).expect("it has a turn");
    assert_eq!(
        [0, 1, 2, 4].map(|n| turn.attempt_timeout(n)),
        [1, 1, 2, 4].map(|n| Some(FIRST_ATTEMPT_TIMEOUT * n))
    );
    turn.record_result(true);
    drop(turn);
    let turn = try_slot(&hosts, "https://a.example/", DEFAULT_LIMITS).expect("it has a turn");
    assert_eq!(turn.attempt_timeout(1), None);
}

#[tokio::test(start_paused = true)]
async fn remembered_hosts_are_bounded() {
    let hosts = new_receivers();
    for n in 0..2 * MAX_RECORDED {
        let (url, address) =
            (format!("https://{n}.example/"), format!("1.{}.{}.1:443", n / 256, n % 256));
        complete_call(&hosts, &url, &address, Duration::from_millis(1), true).await;
        hosts.0.lock().record_rejected_host(&Key::custom(&url), &url.as_str().into());
    }
    let state = hosts.0.lock();
    assert!(state.receivers.len() <= MAX_RECORDED + 1, "{}", state.receivers.len());
    assert!(state.rejected_hosts.len() <= MAX_RECORDED && state.unproven_calls == 0);
    let last = HostOrNetwork::Host(format!("{}.example", 2 * MAX_RECORDED - 1).into());
    assert!(state.receivers.contains_key(&last), "the one that was called last");
}
