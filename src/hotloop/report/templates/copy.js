// The only script of the page: a button that copies the block after it, to the last byte.
// Not navigator.clipboard: a page served by http has none.
for (const button of document.querySelectorAll(".copied button")) {
  const block = button.nextElementSibling;
  button.hidden = false;
  button.addEventListener("click", () => {
    const exact = (event) => {
      event.clipboardData.setData("text/plain", block.textContent);
      event.preventDefault();
    };
    getSelection().selectAllChildren(block);
    document.addEventListener("copy", exact);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
    document.removeEventListener("copy", exact);
  });
}
