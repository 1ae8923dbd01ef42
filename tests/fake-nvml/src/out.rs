//! The pointers that callers hand in.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use crate::ErrorCode;
use crate::call::Answer;

/// Where an answer goes. Only callers of exported functions make one, and those promise that it is null or good for what the function's
/// description says: each method relies on that.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Puts the answer there.
    pub fn put(self, value: T) -> Answer {
        self.put_all(&mut std::iter::once(value))
    }

    /// Puts answers there, one after the other.
    pub fn put_all(self, values: &mut dyn Iterator<Item = T>) -> Answer {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        for (place, value) in values.enumerate() {
            // SAFETY: not null, so good for as many as the caller said that there is room for, and no function puts more.
            unsafe { self.0.add(place).write(value) };
        }
        Ok(())
    }

    /// Changes what the caller has put there.
    pub fn edit<R>(self, change: impl FnOnce(&mut T) -> R) -> Answer<R> {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so good, initialised by the caller, and for this call's use alone.
        Ok(change(unsafe { &mut *self.0 }))
    }

    /// The place of one of several.
    pub fn nth(self, place: usize) -> Self {
        Self(self.0.wrapping_add(place))
    }

    /// Whether the caller wants no answer here.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl Out<c_char> {
    /// Puts a text there, with its end.
    pub fn put_text(self, room: u32, text: &str) -> Answer {
        if text.len() >= room as usize {
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        let bytes = text.bytes().chain([0]);
        self.put_all(&mut bytes.map(|byte| byte as c_char))
    }
}

/// A text of the caller's.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The text.
    pub fn read(&self) -> Answer<String> {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so a C string, by the same promise as `Out`'s; it is copied.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}
