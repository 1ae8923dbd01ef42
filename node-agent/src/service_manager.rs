//! What systemd is told (`Type=notify`): that requests are answered from here on. Without a service manager nobody is told anything.

use sd_notify::NotifyState;

/// We listen.
pub fn ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!("the service manager can't be told that we are ready: {error}");
    }
}
