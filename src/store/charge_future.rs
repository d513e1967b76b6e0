//! `ChargeFuture`: a charge in flight. Every counted request waits for one, so batched charges are
//! not boxed.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::backend::{ChargeOutcome, StoreFuture};
use crate::error::Error;

/// Future of a charge's outcome.
pub(crate) enum ChargeFuture<'a> {
    Boxed(StoreFuture<'a, ChargeOutcome>),
    #[cfg(feature = "redis")]
    Batched(super::redis::BatchedCharge<'a>),
}

impl Future for ChargeFuture<'_> {
    type Output = Result<ChargeOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Boxed(charge) => charge.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Self::Batched(charge) => Pin::new(charge).poll(cx),
        }
    }
}
