train:
	@python plain.py from make
