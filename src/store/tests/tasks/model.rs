//! Both stores answer alike.
