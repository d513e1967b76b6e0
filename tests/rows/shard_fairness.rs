//! Clients that fill the shard of the lock of another client. The name of a lock determines its
//! shard.

use lockgate_tests::{TestCase, TestSite};

use super::{expect_accepted, lock::expect_busy};

/// Shard of an order: FNV-1a of the key's text, modulo 64.
fn shard_of_order(id: u32) -> u64 {
    let text = format!("p:id::{id}");
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step) % 64
}

/// Returns ids whose locks lie in this shard.
fn ids_in_shard(number: u64) -> impl Iterator<Item = u32> {
    (0..).filter(move |id| shard_of_order(*id) == number)
}

/// Sends a request for a lock of this shard. Returns true if it was accepted.
async fn try_defer(site: &TestSite, number: u64, id: u32, user: Option<&str>) -> bool {
    let mut request = site.post(&format!("/crowded/{id}"));
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    let answer = request.send().await;
    if answer.status != 202 {
        expect_busy(answer);
        return false;
    }
    let job = expect_accepted(answer);
    assert!(job.id.starts_with(&format!("{number:02x}")), "{}", job.id);
    true
}

/// Sends requests until one is refused. Returns the number of accepted ones.
async fn defer_until_refused<'a>(
    site: &TestSite,
    number: u64,
    requests: impl Iterator<Item = (u32, Option<&'a str>)>,
) -> u64 {
    let mut taken = 0;
    for (id, user) in requests {
        if !try_defer(site, number, id, user).await {
            break;
        }
        taken += 1;
    }
    taken
}

pub(crate) async fn one_owner_cannot_fill_a_shard(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let mut ids = ids_in_shard(5);
    let victim = ids.next().expect("there are many");
    let taken = defer_until_refused(&site, 5, ids.map(|id| (id, Some("mallory")))).await;
    assert_eq!(taken, 48, "three quarters of 64");
    assert!(try_defer(&site, 5, victim, Some("ada")).await);
    assert!(try_defer(&site, 5, victim, None).await);
}

pub(crate) async fn few_locks_cannot_fill_a_shard(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let names = Vec::from_iter((0..100).map(|n| format!("mallory {n}")));
    for (number, is_named) in [(6, true), (7, false)] {
        let mut ids = ids_in_shard(number);
        let victim = ids.next().expect("there are many");
        let locks = Vec::from_iter(ids.take(3));
        let users = names.iter().map(|name| Some(name.as_str()).filter(|_| is_named));
        let taken = defer_until_refused(&site, number, locks.into_iter().cycle().zip(users)).await;
        assert_eq!(taken, 48);
        for user in [Some("ada"), None] {
            assert!(try_defer(&site, number, victim, user).await, "{user:?}");
        }
    }
}

pub(crate) async fn unowned_requests_leave_room_for_owned_ones(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let mut ids = ids_in_shard(8);
    let victim = ids.next().expect("there are many");
    assert_eq!(
        defer_until_refused(&site, 8, ids.map(|id| (id, None))).await,
        56,
        "seven eighths of 64"
    );
    assert!(try_defer(&site, 8, victim, Some("ada")).await);
}
