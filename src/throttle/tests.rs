//! Lines are suppressed, counted, and bounded in kinds.

use super::*;

#[tokio::test(start_paused = true)]
async fn first_line_of_a_period_has_the_suppressed_count() {
    for expected in [0, 499, 0] {
        assert_eq!(admit("a"), Some(expected));
        let more = if expected == 0 { 499 } else { 0 };
        for _ in 0..more {
            assert_eq!(admit("a"), None);
        }
        assert!(admit("b").is_some(), "another kind");
        tokio::time::advance(THROTTLE_PERIOD).await;
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_kinds_are_bounded() {
    let mut kinds = LogThrottle::default();
    let mut written = 0;
    for n in 0..10_000 {
        written += usize::from(kinds.admit(&n.to_string(), Instant::now()).is_some());
    }
    assert_eq!(written, MAX_KINDS + 1, "those beyond are one kind");
    assert!(kinds.0.len() <= MAX_KINDS + 1);
    assert_eq!(kinds.admit("7", Instant::now()), None, "a listed kind is still throttled");
}

#[test]
fn throttled_line_has_the_suppressed_field() {
    let (log, _guard) = crate::store::CapturedLog::start_capture();
    for n in 0..5 {
        throttled!(warn, n, "forged");
    }
    assert_eq!(log.text().matches("forged").count(), 1, "{}", log.text());
    log.assert_contains("suppressed=0");
}
