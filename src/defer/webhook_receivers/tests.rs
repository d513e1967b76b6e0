use super::*;

const DEFAULT_LIMITS: WebhookLimits = WebhookLimits { max_calls: 8, contended: false };

fn new_receivers() -> Arc<WebhookReceivers> {
    Arc::default()
}

fn try_slot(
    receivers: &Arc<WebhookReceivers>,
    url: &str,
    limits: WebhookLimits,
) -> Option<ReceiverSlot> {
    receivers.try_acquire_slot(&Key::custom(url), url, limits)
}

/// Completes a call to a host and address after `duration`, answered or not.
async fn complete_call(
    receivers: &Arc<WebhookReceivers>,
    url: &str,
    address: &str,
    duration: Duration,
    answered: bool,
) {
    let slot = try_slot(receivers, url, DEFAULT_LIMITS).expect("the receiver has a free slot");
    assert!(slot.try_claim_addresses(&[address.parse().expect("an address")]));
    tokio::time::advance(duration).await;
    slot.record_result(answered);
}

/// Number of calls to these hosts and addresses that get a slot at once.
fn count_concurrent_calls(
    receivers: &Arc<WebhookReceivers>,
    limits: WebhookLimits,
    calls: &[(String, String)],
) -> usize {
    let slots: Vec<_> = calls
        .iter()
        .filter_map(|(url, address)| {
            let slot = try_slot(receivers, url, limits)?;
            slot.try_claim_addresses(&[address.parse().expect("an address")]).then_some(slot)
        })
        .collect();
    slots.len()
}

fn forty_calls(
    url: impl Fn(usize) -> String,
    address: impl Fn(usize) -> String,
) -> Vec<(String, String)> {
    (0..40).map(|n| (url(n), address(n))).collect()
}

#[tokio::test(start_paused = true)]
async fn half_of_the_slots_is_reserved_for_proven_hosts() {
    let receivers = new_receivers();
    let unknown = forty_calls(|n| format!("https://{n}.example/"), |n| format!("8.8.{n}.8:443"));
    assert_eq!(count_concurrent_calls(&receivers, DEFAULT_LIMITS, &unknown), 4);
    complete_call(&receivers, "https://good.example/a", "9.9.9.9:443", Duration::ZERO, true).await;
    let slots: Vec<_> =
        unknown.iter().filter_map(|(url, _)| try_slot(&receivers, url, DEFAULT_LIMITS)).collect();
    assert_eq!(slots.len(), 4);
    // A host is identified by its name, in any case, and its port.
    assert!(try_slot(&receivers, "https://GOOD.example/b?c", DEFAULT_LIMITS).is_some());
    assert!(try_slot(&receivers, "https://good.example:8443/a", DEFAULT_LIMITS).is_none());
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
        let receivers = new_receivers();
        assert_eq!(
            count_concurrent_calls(&receivers, DEFAULT_LIMITS, &url),
            4,
            "{address} has no record yet"
        );
        complete_call(&receivers, "https://first.example", address, 3 * SLOW_THRESHOLD, false)
            .await;
        assert_eq!(count_concurrent_calls(&receivers, DEFAULT_LIMITS, &url), 2, "{address}");
        // A host at another address still gets a slot.
        let slots: Vec<_> =
            url.iter().filter_map(|(url, _)| try_slot(&receivers, url, DEFAULT_LIMITS)).collect();
        drop(slots);
        complete_call(&receivers, "https://other.example", "9.9.9.9:443", Duration::ZERO, true)
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_host_gets_more_slots_without_contention() {
    let receivers = new_receivers();
    let url = "https://slow.example/";
    complete_call(&receivers, url, "1.2.3.4:443", 2 * SLOW_THRESHOLD, true).await;
    let calls = vec![(url.to_owned(), "1.2.3.4:443".to_owned()); 8];
    assert_eq!(count_concurrent_calls(&receivers, DEFAULT_LIMITS, &calls), 4);
    assert_eq!(
        count_concurrent_calls(
            &receivers,
            WebhookLimits { contended: true, ..DEFAULT_LIMITS },
            &calls
        ),
        2
    );
    complete_call(&receivers, url, "1.2.3.4:443", Duration::ZERO, true).await;
    assert_eq!(
        count_concurrent_calls(
            &receivers,
            WebhookLimits { contended: true, ..DEFAULT_LIMITS },
            &calls
        ),
        8
    );
}

/// Hosts of other owners may share the address, for example behind one proxy.
#[tokio::test(start_paused = true)]
async fn proven_host_keeps_half_of_a_silent_address() {
    let receivers = new_receivers();
    let (good, address) = ("https://good.example/", "1.2.3.4:443");
    complete_call(&receivers, good, address, Duration::ZERO, true).await;
    complete_call(&receivers, "https://silent.example/", address, 3 * SLOW_THRESHOLD, false).await;
    let silent = forty_calls(|n| format!("https://{n}.example/"), |_| address.into());
    let slots: Vec<_> = silent
        .iter()
        .filter_map(|(url, address)| {
            let slot = try_slot(&receivers, url, DEFAULT_LIMITS)?;
            slot.try_claim_addresses(&[address.parse().expect("an address")]).then_some(slot)
        })
        .collect();
    assert_eq!(slots.len(), 2);
    assert_eq!(
        count_concurrent_calls(
            &receivers,
            DEFAULT_LIMITS,
            &vec![(good.to_owned(), address.to_owned()); 8]
        ),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn rejected_call_is_remembered_until_it_gets_a_slot() {
    let receivers = new_receivers();
    let limits = WebhookLimits { max_calls: 2, contended: true };
    let first =
        try_slot(&receivers, "https://a.example/", limits).expect("the receiver has no other call");
    let key = Key::custom("b");
    assert!(receivers.free_slots(limits).allows(&key), "the host has no record");
    assert!(receivers.try_acquire_slot(&key, "https://b.example/", limits).is_none());
    let by_age = 60 * SLOW_THRESHOLD;
    assert_eq!(receivers.retry_delay(&key, by_age), NO_SLOT_RETRY_DELAY);
    assert_eq!(receivers.retry_delay(&Key::custom("c"), by_age), by_age);
    assert!(!receivers.free_slots(limits).allows(&key));
    drop(first);
    assert!(receivers.free_slots(limits).allows(&key));
    assert!(receivers.try_acquire_slot(&key, "https://b.example/", limits).is_some());
    assert!(receivers.0.lock().rejected_hosts.is_empty());
}

/// The host was never called. It is judged by the address that was resolved when the call was
/// rejected.
#[tokio::test(start_paused = true)]
async fn call_rejected_by_address_is_due_when_a_slot_frees() {
    let (receivers, address) = (new_receivers(), "1.2.3.4:443");
    complete_call(&receivers, "https://silent.example/", address, 3 * SLOW_THRESHOLD, false).await;
    let claims_address =
        |slot: &ReceiverSlot| slot.try_claim_addresses(&[address.parse().expect("an address")]);
    let filling: Vec<_> = (0..2)
        .map(|n| {
            let slot = try_slot(&receivers, &format!("https://{n}.example/"), DEFAULT_LIMITS)
                .expect("the receiver has a free slot");
            assert!(claims_address(&slot));
            slot
        })
        .collect();
    let url = "https://late.example/";
    let slot = try_slot(&receivers, url, DEFAULT_LIMITS).expect("the host has no record");
    assert!(!claims_address(&slot));
    drop(slot);
    let key = Key::custom(url);
    assert!(!receivers.free_slots(DEFAULT_LIMITS).allows(&key), "a claim would find no slot");
    drop(filling);
    assert!(receivers.free_slots(DEFAULT_LIMITS).allows(&key));
    assert!(try_slot(&receivers, url, DEFAULT_LIMITS).is_some_and(|slot| claims_address(&slot)));
}

#[tokio::test(start_paused = true)]
async fn unproven_host_gets_more_time_with_each_attempt() {
    let receivers = new_receivers();
    let slot = try_slot(&receivers, "https://a.example/", DEFAULT_LIMITS)
        .expect("the receiver has a free slot");
    assert_eq!(
        [0, 1, 2, 4].map(|n| slot.attempt_timeout(n)),
        [1, 1, 2, 4].map(|n| Some(FIRST_ATTEMPT_TIMEOUT * n))
    );
    slot.record_result(true);
    drop(slot);
    let slot = try_slot(&receivers, "https://a.example/", DEFAULT_LIMITS)
        .expect("the receiver has a free slot");
    assert_eq!(slot.attempt_timeout(1), None);
}

#[tokio::test(start_paused = true)]
async fn remembered_hosts_are_bounded() {
    let receivers = new_receivers();
    for n in 0..2 * MAX_RECORDED {
        let (url, address) =
            (format!("https://{n}.example/"), format!("1.{}.{}.1:443", n / 256, n % 256));
        complete_call(&receivers, &url, &address, Duration::from_millis(1), true).await;
        receivers.0.lock().record_rejected_host(&Key::custom(&url), &url.as_str().into());
    }
    let state = receivers.0.lock();
    assert!(state.receivers.len() <= MAX_RECORDED + 1, "{}", state.receivers.len());
    assert!(state.rejected_hosts.len() <= MAX_RECORDED && state.unproven_calls == 0);
    let last = HostOrNetwork::Host(format!("{}.example", 2 * MAX_RECORDED - 1).into());
    assert!(state.receivers.contains_key(&last), "the latest receiver is recorded");
}
